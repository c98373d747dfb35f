{{/* One of the four services: Deployment and all that belongs to it. Takes root and service, an entry of
anabranch.enabledServices. */}}

{{/* Its settings as variables. */}}
{{- define "anabranch.settings" -}}
{{- $root := .root -}}
{{- $settings := dict "listen_address" "0.0.0.0:7400" -}}
{{- if $root.Values.telemetry.prometheus -}}
{{- $_ := set $settings "metrics_address" "0.0.0.0:9464" -}}
{{- end -}}
{{- with $root.Values.telemetry.otlpEndpoint -}}
{{- $_ := set $settings "otlp_endpoint" . -}}
{{- end -}}
{{- if include "anabranch.tls" $root -}}
{{- $_ := set $settings "tls_cert_file" "/etc/anabranch/tls/tls.crt" -}}
{{- $_ := set $settings "tls_key_file" "/etc/anabranch/tls/tls.key" -}}
{{- else -}}
{{- $_ := set $settings "allow_plaintext_beyond_loopback" true -}}
{{- end -}}
{{- range $name, $value := mergeOverwrite $settings .service.values.settings }}
ANABRANCH_{{ upper $name }}: {{ include "anabranch.settingText" $value | quote }}
{{- end }}
{{- end -}}

{{/* Large whole numbers are floats to Helm; they must not come out as 6.7108864e+07. */}}
{{- define "anabranch.settingText" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}{{ printf "%.0f" . }}{{- else -}}{{ toString . }}{{- end -}}
{{- end -}}

{{- define "anabranch.askHealth" -}}
exec:
  command:
    - python
    - -m
    - anabranch.runtime.health
    - 127.0.0.1:7400
    {{- if include "anabranch.tls" .root }}
    - --ca-file
    - /etc/anabranch/tls/{{ include "anabranch.tlsCaKey" .root }}
    - --server-name
    - {{ include "anabranch.tlsServerName" .root | quote }}
    {{- end }}
{{- end -}}

{{- define "anabranch.probe" -}}
{{- if include "anabranch.tls" .root -}}
{{- include "anabranch.askHealth" . -}}
{{- else -}}
grpc:
  port: 7400
{{- end -}}
{{- end -}}

{{- define "anabranch.deployment" -}}
{{- $root := .root -}}
{{- $service := .service -}}
{{- $values := $service.values -}}
{{- $name := printf "%s-%s" (include "anabranch.fullname" $root) $service.component -}}
{{- $labelled := dict "root" $root "component" $service.component -}}
{{- $lake := and $root.Values.compactor.enabled $values.lake -}}
{{- $drainMs := get $values.settings "drain_ms" | default 10000 | int -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $name }}
  labels:
    {{- include "anabranch.labels" $labelled | nindent 4 }}
spec:
  {{- if not $values.autoscaling.enabled }}
  replicas: {{ $values.replicas }}
  {{- end }}
  revisionHistoryLimit: 5
  strategy:
    type: RollingUpdate
    rollingUpdate:
      maxUnavailable: 0
      maxSurge: 1
  selector:
    matchLabels:
      {{- include "anabranch.selector" $labelled | nindent 6 }}
  template:
    metadata:
      labels:
        {{- mergeOverwrite (deepCopy $values.podLabels) (include "anabranch.labels" $labelled | fromYaml) | toYaml | nindent 8 }}
      annotations:
        checksum/settings: {{ include "anabranch.settings" . | sha256sum }}
        {{- with $values.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      serviceAccountName: {{ $name }}
      automountServiceAccountToken: false
      enableServiceLinks: false
      {{- include "anabranch.pullSecrets" $root | nindent 6 }}
      {{- with $values.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      securityContext:
        {{- include "anabranch.podSecurity" $root | nindent 8 }}
      # The address list's delay, the drain, and the moment in which what is left is cut off.
      terminationGracePeriodSeconds: {{ add $values.preStopSeconds (div (add $drainMs 999) 1000) 15 }}
      {{- with $values.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.affinity }}
      affinity:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      topologySpreadConstraints:
        {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
        - topologyKey: {{ . }}
          maxSkew: 1
          whenUnsatisfiable: ScheduleAnyway
          matchLabelKeys: [pod-template-hash]
          labelSelector:
            matchLabels:
              {{- include "anabranch.selector" $labelled | nindent 14 }}
        {{- end }}
      containers:
        - name: {{ $service.component }}
          image: {{ include "anabranch.image" (dict "root" $root "image" $root.Values.image) | quote }}
          imagePullPolicy: {{ $root.Values.image.pullPolicy }}
          command: [python, -m, {{ $service.module }}]
          securityContext:
            {{- include "anabranch.containerSecurity" $root | nindent 12 }}
          envFrom:
            - configMapRef:
                name: {{ $name }}
            {{- if and $lake $root.Values.compactor.environmentSecret }}
            - secretRef:
                name: {{ $root.Values.compactor.environmentSecret }}
            {{- end }}
          env:
            {{- include "anabranch.postgresEnv" (dict "root" $root "secret" (printf "%s-postgres" (include "anabranch.fullname" $root))) | nindent 12 }}
            {{- if and (eq $service.key "conflictResolver") $root.Values.postgres.writerSecret.name }}
            - name: ANABRANCH_WRITER_POSTGRES_URL
              valueFrom:
                secretKeyRef:
                  name: {{ $root.Values.postgres.writerSecret.name }}
                  key: {{ $root.Values.postgres.writerSecret.urlKey }}
            {{- end }}
            {{- if $root.Values.auth.hs256.enabled }}
            {{- $existing := $root.Values.auth.hs256.existingSecret }}
            - name: ANABRANCH_JWT_HS256_SECRET
              valueFrom:
                secretKeyRef:
                  name: {{ $existing.name | default (printf "%s-tokens" (include "anabranch.fullname" $root)) }}
                  key: {{ if $existing.name }}{{ $existing.key }}{{ else }}hs256-secret{{ end }}
            {{- end }}
          ports:
            - name: grpc
              containerPort: 7400
            {{- if $root.Values.telemetry.prometheus }}
            - name: metrics
              containerPort: 9464
            {{- end }}
          # The service listens only after Postgres has answered and its schema fits, for which it waits a minute.
          startupProbe:
            tcpSocket:
              port: grpc
            periodSeconds: 2
            failureThreshold: 45
          # SERVING: pool, schema and the service itself agree that it can work.
          readinessProbe:
            {{- include "anabranch.probe" . | nindent 12 }}
            {{- if include "anabranch.tls" $root }}
            # A program of Python each time, which takes a few tenths of a second of processor.
            periodSeconds: 10
            timeoutSeconds: 5
            {{- else }}
            periodSeconds: 5
            timeoutSeconds: 3
            {{- end }}
            failureThreshold: 2
          # Whether the process answers anything at all: the kernel takes connections for one that hangs, too. A database
          # that is away must not have it started again, so that "not ready" is an answer.
          livenessProbe:
            {{- include "anabranch.askHealth" . | nindent 12 }}
                - --alive
                - --timeout-s
                - "8"
            periodSeconds: 30
            timeoutSeconds: 10
            failureThreshold: 4
          lifecycle:
            preStop:
              sleep:
                seconds: {{ $values.preStopSeconds }}
          resources:
            {{- toYaml $values.resources | nindent 12 }}
          volumeMounts:
            - name: tmp
              mountPath: /tmp
            {{- include "anabranch.postgresCaMount" $root | nindent 12 }}
            {{- if include "anabranch.tls" $root }}
            - name: tls
              mountPath: /etc/anabranch/tls
              readOnly: true
            {{- end }}
            {{- if and $lake $root.Values.compactor.volumeClaim }}
            - name: lake
              mountPath: /var/lib/anabranch
              readOnly: true
            {{- end }}
      volumes:
        - name: tmp
          emptyDir:
            sizeLimit: 256Mi
        {{- include "anabranch.postgresCaVolume" $root | nindent 8 }}
        {{- if include "anabranch.tls" $root }}
        - name: tls
          secret:
            secretName: {{ include "anabranch.tlsSecret" $root }}
            defaultMode: 0440
        {{- end }}
        {{- if and $lake $root.Values.compactor.volumeClaim }}
        - name: lake
          persistentVolumeClaim:
            claimName: {{ $root.Values.compactor.volumeClaim }}
        {{- end }}
{{- end -}}
