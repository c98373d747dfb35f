{{/* Names and labels. Selectors hold only what never changes over a release's life. */}}

{{- define "anabranch.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "anabranch.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "anabranch.name" . -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The pods of a component. Takes root and component. */}}
{{- define "anabranch.selector" -}}
app.kubernetes.io/name: {{ include "anabranch.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* Takes root and component. */}}
{{- define "anabranch.labels" -}}
{{ include "anabranch.selector" . }}
app.kubernetes.io/part-of: anabranch
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Takes root and image (repository, tag, digest). */}}
{{- define "anabranch.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* What a service is: its key in values, its name, its module, the gRPC services that it has. */}}
{{- define "anabranch.services" -}}
- {key: ingest, component: ingest, module: anabranch_ingest, grpc: [anabranch.v1.IngestService]}
- {key: conflictResolver, component: conflict-resolver, module: anabranch_conflict_resolver, grpc: [anabranch.v1.ConflictResolverService]}
- {key: snapshot, component: snapshot, module: anabranch_snapshot, grpc: [anabranch.v1.ChangeService, anabranch.v1.SnapshotService]}
- {key: retentionJanitor, component: retention-janitor, module: anabranch_retention_janitor, grpc: [anabranch.v1.RetentionJanitorService]}
{{- end -}}

{{/* The services that are on, each with its merged values under `values`, as YAML: a list. Takes root. */}}
{{- define "anabranch.enabledServices" -}}
{{- $root := . -}}
{{- $found := list -}}
{{- range include "anabranch.services" . | fromYamlArray -}}
{{- $values := mergeOverwrite (deepCopy $root.Values.services.defaults) (deepCopy (index $root.Values.services .key)) -}}
{{- if $values.enabled -}}
{{- $found = append $found (merge (dict "values" $values) .) -}}
{{- end -}}
{{- end -}}
{{- toYaml $found -}}
{{- end -}}

{{/* The fewest pods that a service has. Takes its merged values. */}}
{{- define "anabranch.fewest" -}}
{{- if .autoscaling.enabled }}{{ .autoscaling.minReplicas }}{{ else }}{{ .replicas }}{{ end -}}
{{- end -}}
