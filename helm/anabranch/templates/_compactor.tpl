{{/* What driver and executors share. */}}

{{- define "anabranch.compactorEnvironment" -}}
{{- with .Values.compactor.environmentSecret -}}
envFrom:
  - secretRef:
      name: {{ . }}
{{ end -}}
env:
  {{- include "anabranch.postgresEnv" (dict "root" . "secret" (printf "%s-postgres" (include "anabranch.fullname" .))) | nindent 2 }}
  - name: SPARK_CONF_DIR
    value: /etc/anabranch/spark
  # The root file system is read-only, and Spark wants to know a name for any uid.
  - name: HOME
    value: /tmp
  - name: SPARK_USER
    value: anabranch
  - name: SPARK_LOCAL_DIRS
    value: /var/spark
{{- end -}}

{{- define "anabranch.compactorMounts" -}}
- name: tmp
  mountPath: /tmp
{{- /* Spark mounts a volume of its own beside one of any other name. */}}
- name: spark-local-dir-1
  mountPath: /var/spark
{{ include "anabranch.postgresCaMount" . }}
{{- if .Values.compactor.volumeClaim }}
- name: lake
  mountPath: /var/lib/anabranch
{{- end }}
{{- end -}}

{{- define "anabranch.compactorVolumes" -}}
- name: tmp
  emptyDir:
    sizeLimit: 1Gi
- name: spark-local-dir-1
  emptyDir:
    sizeLimit: 20Gi
{{ include "anabranch.postgresCaVolume" . }}
{{- with .Values.compactor.volumeClaim }}
- name: lake
  persistentVolumeClaim:
    claimName: {{ . }}
{{- end }}
{{- end -}}
