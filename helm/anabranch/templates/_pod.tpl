{{/* What every pod has: nothing that Pod Security "restricted" refuses, and no credentials of the cluster. */}}
{{- define "anabranch.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "anabranch.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "anabranch.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{/* A value in libpq's key=value form. */}}
{{- define "anabranch.conninfoValue" -}}
'{{ . | toString | replace "\\" "\\\\" | replace "'" "\\'" }}'
{{- end -}}

{{/* Where Postgres is, without the password. */}}
{{- define "anabranch.conninfo" -}}
{{- $postgres := .Values.postgres -}}
{{- $parts := dict "host" $postgres.host "port" $postgres.port "dbname" $postgres.database "user" $postgres.user "sslmode" (include "anabranch.sslMode" .) -}}
{{- if .Values.bundledPostgres.enabled -}}
{{- $parts = dict "host" (printf "%s-postgres" (include "anabranch.fullname" .)) "port" 5432 "dbname" "anabranch" "user" "anabranch" "sslmode" (include "anabranch.sslMode" .) -}}
{{- end -}}
{{- range $name, $value := mergeOverwrite (dict) $parts $postgres.parameters -}}
{{ $name }}={{ include "anabranch.conninfoValue" $value }}{{ " " }}
{{- end -}}
{{- end -}}

{{/* The variables that lead to Postgres. The password travels beside the URL, as it is: no character of it needs
an escape. In a plain value Kubernetes would expand $(NAME); $$ is a dollar sign. What a URL of a Secret leaves unsaid
about TLS, PGSSLMODE says. Takes root, and secret: the name of the chart's Secret to use. */}}
{{- define "anabranch.postgresEnv" -}}
{{- $existing := .root.Values.postgres.existingSecret -}}
{{- if and $existing.name $existing.urlKey (not .root.Values.bundledPostgres.enabled) -}}
- name: ANABRANCH_POSTGRES_URL
  valueFrom:
    secretKeyRef:
      name: {{ $existing.name }}
      key: {{ $existing.urlKey }}
- name: PGSSLMODE
  value: {{ include "anabranch.sslMode" .root }}
{{- else -}}
- name: ANABRANCH_POSTGRES_URL
  value: {{ include "anabranch.conninfo" .root | trim | replace "$" "$$" | quote }}
{{- if or .root.Values.bundledPostgres.enabled $existing.name .root.Values.postgres.password }}
- name: PGPASSWORD
  valueFrom:
    secretKeyRef:
{{- if and $existing.name (not .root.Values.bundledPostgres.enabled) }}
      name: {{ $existing.name }}
      key: {{ $existing.passwordKey }}
{{- else }}
      name: {{ .secret }}
      key: password
{{- end }}
{{- end }}
{{- end }}
{{- if include "anabranch.postgresCa" .root }}
- name: PGSSLROOTCERT
  value: /etc/anabranch/postgres/ca.crt
{{- end }}
{{- end -}}

{{/* A secret that stays what it is over upgrades: the one given, else the one in the cluster, else a new one. Where
no cluster is asked (helm template, and what builds on it) a new one would come with every rendering and lock
everybody out, so that is refused. `v1/Secret` with its kind is known only from a cluster.
Takes root, given, name and key of the Secret, and value: what to set. */}}
{{- define "anabranch.stableSecret" -}}
{{- if .given -}}
{{- .given | b64enc -}}
{{- else -}}
{{- $kept := lookup "v1" "Secret" .root.Release.Namespace .name -}}
{{- $data := $kept.data | default dict -}}
{{- if hasKey $data .key -}}
{{- index $data .key -}}
{{- else if not (.root.Capabilities.APIVersions.Has "v1/Secret") -}}
{{- fail (printf "without a cluster no secret can be kept over renderings: set %s, or name a Secret of yours" .value) -}}
{{- else -}}
{{- randAlphaNum 40 | b64enc -}}
{{- end -}}
{{- end -}}
{{- end -}}
