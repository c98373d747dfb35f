{{/* TLS: of the services' listeners, and of the way to Postgres. */}}

{{/* "true" where the services speak TLS. */}}
{{- define "anabranch.tls" -}}
{{- if or (kindIs "invalid" .Values.tls.enabled) .Values.tls.enabled -}}true{{- end -}}
{{- end -}}

{{/* "true" where the chart makes their certificate itself. */}}
{{- define "anabranch.tlsGenerated" -}}
{{- if and (include "anabranch.tls" .) (not .Values.tls.secretName) (not .Values.tls.certManager.issuer.name) -}}true{{- end -}}
{{- end -}}

{{- define "anabranch.tlsSecret" -}}
{{- .Values.tls.secretName | default (printf "%s-tls" (include "anabranch.fullname" .)) -}}
{{- end -}}

{{/* The key of the authority in it. */}}
{{- define "anabranch.tlsCaKey" -}}
{{- ternary .Values.tls.caKey "ca.crt" (not (empty .Values.tls.secretName)) -}}
{{- end -}}

{{/* A name in the certificate. */}}
{{- define "anabranch.tlsServerName" -}}
{{- if .Values.tls.secretName -}}
{{- required "tls.serverName: the probes need the name in the certificate" .Values.tls.serverName -}}
{{- else -}}
{{- first (include "anabranch.tlsNames" . | fromYamlArray) -}}
{{- end -}}
{{- end -}}

{{/* The names in a certificate that is made: every way to say a Service of this release, whether it is on or not. */}}
{{- define "anabranch.tlsNames" -}}
{{- $root := . -}}
{{- $names := list -}}
{{- range include "anabranch.services" . | fromYamlArray -}}
{{- $names = concat $names (include "anabranch.serviceNames" (dict "root" $root "component" .component) | fromYamlArray) -}}
{{- end -}}
{{- toYaml (concat $names .Values.tls.extraNames) -}}
{{- end -}}

{{/* Takes root and component. */}}
{{- define "anabranch.serviceNames" -}}
{{- $name := printf "%s-%s" (include "anabranch.fullname" .root) .component -}}
{{- $space := .root.Release.Namespace -}}
{{- toYaml (list $name (printf "%s.%s" $name $space) (printf "%s.%s.svc" $name $space) (printf "%s.%s.svc.cluster.local" $name $space)) -}}
{{- end -}}

{{/* A certificate with its authority, which stays what it is over upgrades: the one in the cluster, else a new one; as
anabranch.stableSecret, never a new one where no cluster is asked. Takes root, name of the Secret, names, and value: what
to set instead. Gives the Secret's data as YAML. */}}
{{- define "anabranch.stableCertificate" -}}
{{- $kept := lookup "v1" "Secret" .root.Release.Namespace .name -}}
{{- $data := $kept.data | default dict -}}
{{- if and (hasKey $data "tls.crt") (hasKey $data "tls.key") (hasKey $data "ca.crt") -}}
{{- toYaml (pick $data "tls.crt" "tls.key" "ca.crt") -}}
{{- else if not (.root.Capabilities.APIVersions.Has "v1/Secret") -}}
{{- fail (printf "without a cluster no certificate can be kept over renderings: %s" .value) -}}
{{- else -}}
{{- $authority := genCA (printf "%s authority" .name) 3650 -}}
{{- $made := genSignedCert (first .names) (list "127.0.0.1") .names 3650 $authority -}}
{{- toYaml (dict "tls.crt" ($made.Cert | b64enc) "tls.key" ($made.Key | b64enc) "ca.crt" ($authority.Cert | b64enc)) -}}
{{- end -}}
{{- end -}}

{{/* "true" where the bundled Postgres speaks TLS. */}}
{{- define "anabranch.bundledTls" -}}
{{- if and .Values.bundledPostgres.enabled (not (has .Values.postgres.sslMode (list "disable" "allow" "prefer"))) -}}true{{- end -}}
{{- end -}}

{{- define "anabranch.bundledTlsSecret" -}}
{{- .Values.bundledPostgres.tlsSecret | default (printf "%s-postgres-tls" (include "anabranch.fullname" .)) -}}
{{- end -}}

{{/* The Secret with the authority of Postgres, and its key, as YAML; nothing where there is none. */}}
{{- define "anabranch.postgresCa" -}}
{{- if include "anabranch.bundledTls" . -}}
{{- toYaml (dict "name" (include "anabranch.bundledTlsSecret" .) "key" "ca.crt") -}}
{{- else if and .Values.postgres.ca.secretName (not .Values.bundledPostgres.enabled) -}}
{{- toYaml (dict "name" .Values.postgres.ca.secretName "key" .Values.postgres.ca.key) -}}
{{- end -}}
{{- end -}}

{{- define "anabranch.sslMode" -}}
{{- .Values.postgres.sslMode | default (ternary "verify-full" "require" (not (empty (include "anabranch.postgresCa" .)))) -}}
{{- end -}}

{{/* Entries of a pod's lists; nothing where there is no such authority. */}}
{{- define "anabranch.postgresCaMount" -}}
{{- if include "anabranch.postgresCa" . -}}
- name: postgres-ca
  mountPath: /etc/anabranch/postgres
  readOnly: true
{{- end -}}
{{- end -}}

{{- define "anabranch.postgresCaVolume" -}}
{{- with include "anabranch.postgresCa" . | fromYaml -}}
{{- if .name -}}
- name: postgres-ca
  secret:
    secretName: {{ .name }}
    # The authority alone: no key of the server.
    items:
      - {key: {{ .key }}, path: ca.crt}
    defaultMode: 0440
{{- end -}}
{{- end -}}
{{- end -}}
