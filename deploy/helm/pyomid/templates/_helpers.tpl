{{- define "pyomid.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "pyomid.labels" -}}
app.kubernetes.io/name: pyomid
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "pyomid.selector" -}}
app.kubernetes.io/name: pyomid
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "pyomid.url" -}}
{{- if not (hasPrefix "omid+hbase://" .Values.url) -}}
{{- fail "set url to the database: omid+hbase://zk1:2181,zk2:2181/hbase, with its options" -}}
{{- end -}}
{{- .Values.url -}}
{{- end }}

{{- define "pyomid.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "pyomid.pod" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
  {{- with .Values.podSecurityContext }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "pyomid.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "pyomid.storeEnv" -}}
{{- if .Values.secrets.krb5Conf }}
- name: KRB5_CONFIG
  value: /etc/pyomid/store/{{ .Values.secrets.krb5Conf }}
{{- end }}
{{- end }}
