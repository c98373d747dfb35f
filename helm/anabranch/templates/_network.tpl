{{/* What every pod of ours calls: names, and Postgres. Takes root. */}}
{{- define "anabranch.egress" -}}
- ports:
    - {protocol: UDP, port: 53}
    - {protocol: TCP, port: 53}
{{- if .root.Values.bundledPostgres.enabled }}
- ports:
    - {protocol: TCP, port: 5432}
  to:
    - podSelector:
        matchLabels:
          {{- include "anabranch.selector" (dict "root" .root "component" "postgres") | nindent 10 }}
{{- else }}
{{- /* The port of a URL in a Secret of yours is postgres.port as well. */}}
- ports:
    - {protocol: TCP, port: {{ .root.Values.postgres.port }}}
  {{- with .root.Values.networkPolicy.postgres }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* The port of a URL. */}}
{{- define "anabranch.urlPort" -}}
{{- $url := urlParse . -}}
{{- $port := regexFind ":[0-9]+$" $url.host | trimPrefix ":" -}}
{{- if $port }}{{ $port }}{{ else if eq $url.scheme "https" }}443{{ else }}80{{ end -}}
{{- end -}}
