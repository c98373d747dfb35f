{{/* Whether groups are to be committed as the role of the services. The defaults of all services can't say so. */}}
{{- define "anabranch.trustsOwners" -}}
{{- if dig "settings" "trust_owners" false .Values.services.conflictResolver -}}true{{- end -}}
{{- end -}}

{{/* What values.schema.json can't say: values that don't fit together. One clear error each. */}}
{{- define "anabranch.checks" -}}
{{- $postgres := .Values.postgres -}}
{{- $existing := $postgres.existingSecret -}}
{{- if not .Values.bundledPostgres.enabled -}}
{{- if $existing.name -}}
{{- if eq (empty $existing.urlKey) (empty $existing.passwordKey) -}}
{{- fail "postgres.existingSecret: give urlKey or passwordKey, one of them" -}}
{{- end -}}
{{- if $postgres.password -}}
{{- fail "postgres.password and postgres.existingSecret: give one of them" -}}
{{- end -}}
{{- else if or $existing.urlKey $existing.passwordKey -}}
{{- fail "postgres.existingSecret.name is missing" -}}
{{- end -}}
{{- if and (not $postgres.host) (not $existing.urlKey) -}}
{{- fail "no Postgres: set postgres.host, or postgres.existingSecret with urlKey, or, to try things out, bundledPostgres.enabled" -}}
{{- end -}}
{{- else if or $postgres.host $postgres.password $existing.name -}}
{{- fail "bundledPostgres.enabled and a Postgres of yours (postgres.host, .password, .existingSecret): choose one" -}}
{{- end -}}
{{- if and $postgres.writerSecret.name (include "anabranch.trustsOwners" .) -}}
{{- fail "postgres.writerSecret and services.conflictResolver.settings.trust_owners: choose one" -}}
{{- end -}}
{{- if and .Values.auth.hs256.secret .Values.auth.hs256.existingSecret.name -}}
{{- fail "auth.hs256.secret and auth.hs256.existingSecret: give one of them" -}}
{{- end -}}
{{- if and .Values.auth.hs256.secret (lt (len .Values.auth.hs256.secret) 32) -}}
{{- fail "auth.hs256.secret is shorter than 32 bytes" -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not (and .Values.ingress.host .Values.ingress.tlsSecret)) -}}
{{- fail "ingress: host and tlsSecret are needed" -}}
{{- end -}}
{{- if and .Values.gateway.enabled (not .Values.gateway.parentRefs) -}}
{{- fail "gateway.parentRefs is empty: no Gateway would take the route" -}}
{{- end -}}
{{- if and .Values.serviceMonitor.enabled (not .Values.telemetry.prometheus) -}}
{{- fail "serviceMonitor.enabled needs telemetry.prometheus" -}}
{{- end -}}
{{- $tls := .Values.tls -}}
{{- if and $tls.secretName (not $tls.serverName) -}}
{{- fail "tls.serverName: the probes need the name in the certificate" -}}
{{- end -}}
{{- if and (not (include "anabranch.tls" .)) (or $tls.secretName $tls.certManager.issuer.name) -}}
{{- fail "tls.enabled is false, and tls.secretName or tls.certManager.issuer is given: choose one" -}}
{{- end -}}
{{- if and $tls.secretName $tls.certManager.issuer.name -}}
{{- fail "tls.secretName and tls.certManager.issuer: give one of them" -}}
{{- end -}}
{{- if and .Values.gateway.enabled (include "anabranch.tls" .) .Values.gateway.backendTls.enabled (not .Values.gateway.backendTls.caConfigMap) (not (include "anabranch.tlsGenerated" .)) -}}
{{- fail "gateway.backendTls.caConfigMap: the Gateway needs the authority of the services' certificate; or gateway.backendTls.enabled: false, where a policy of yours has it" -}}
{{- end -}}
{{- if and .Release.IsUpgrade (kindIs "invalid" $tls.enabled) (not $tls.secretName) -}}
{{- $root := . -}}
{{- range include "anabranch.enabledServices" . | fromYamlArray -}}
{{- $there := lookup "v1" "Service" $root.Release.Namespace (printf "%s-%s" (include "anabranch.fullname" $root) .component) -}}
{{- range dig "spec" "ports" list $there -}}
{{- if eq (get . "appProtocol") "kubernetes.io/h2c" -}}
{{- fail "the services of this release speak plaintext so far, and TLS is the default now: say tls.enabled: true (whoever calls the Services inside the cluster has to speak TLS, too) or tls.enabled: false" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $postgres.ca.secretName .Values.bundledPostgres.enabled -}}
{{- fail "bundledPostgres.enabled and postgres.ca: the bundled one has an authority of its own (bundledPostgres.tlsSecret)" -}}
{{- end -}}
{{- if and (has $postgres.sslMode (list "verify-ca" "verify-full")) (not (include "anabranch.postgresCa" .)) (not $postgres.parameters.sslrootcert) (not $existing.urlKey) -}}
{{- fail "postgres.sslMode: to verify takes an authority: name it in postgres.ca.secretName" -}}
{{- end -}}
{{- if .Values.compactor.enabled -}}
{{- if and (hasPrefix "/" .Values.compactor.root) (not .Values.compactor.volumeClaim) -}}
{{- fail "compactor.root is a path, so compactor.volumeClaim is needed: a pod's own disk goes with it" -}}
{{- end -}}
{{- if and (hasPrefix "/" .Values.compactor.root) (not (hasPrefix "/var/lib/anabranch" .Values.compactor.root)) -}}
{{- fail "compactor.root must lie below /var/lib/anabranch, where the volume is" -}}
{{- end -}}
{{- end -}}
{{- range include "anabranch.enabledServices" . | fromYamlArray -}}
{{- if and .values.autoscaling.enabled (gt (int .values.autoscaling.minReplicas) (int .values.autoscaling.maxReplicas)) -}}
{{- fail (printf "services.%s.autoscaling: minReplicas is above maxReplicas" .key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
