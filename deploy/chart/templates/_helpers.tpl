{{/* Labels of every object. Helm adds app.kubernetes.io/managed-by itself. */}}
{{- define "netpold.labels" -}}
app.kubernetes.io/name: netpold
app.kubernetes.io/part-of: netpold
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* A word that YAML 1.1 may have read as a boolean: `off` and `on`. */}}
{{- define "netpold.word" -}}
{{- if kindIs "bool" . }}{{ ternary "on" "off" . }}{{ else }}{{ . }}{{ end -}}
{{- end -}}

{{- define "netpold.image" -}}
{{- $image := .Values.image -}}
{{- printf "%s:%s" $image.repository ($image.tag | default .Chart.AppVersion) -}}
{{- with $image.digest }}@{{ . }}{{ end -}}
{{- end -}}

{{- define "netpold.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end -}}

{{/* Environment of all containers: the log. */}}
{{- define "netpold.logEnv" -}}
- name: NETPOLD_LOG_FORMAT
  value: {{ .Values.log.format }}
{{- $level := include "netpold.word" .Values.log.level }}
{{- if ne $level "info" }}
- name: NETPOLD_LOG
  value: {{ $level | quote }}
{{- end }}
{{- end -}}

{{/* Variables of the flags with another value than netpold's default: name, value, default. */}}
{{- define "netpold.flags" -}}
{{- range . }}
{{- $value := index . 1 }}
{{- if kindIs "slice" $value }}{{ $value = join "," $value }}{{ end }}
{{- $value = include "netpold.word" $value }}
{{- if ne $value (index . 2) }}
- name: NETPOLD_{{ index . 0 }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/* API version of MutatingAdmissionPolicy that the cluster serves, or nothing. */}}
{{- define "netpold.mutating.served" -}}
{{- $version := .Values.mutatingAdmissionPolicy.version -}}
{{- $served := .Capabilities.APIVersions -}}
{{- if eq $version "auto" -}}
  {{- if $served.Has "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy" -}}v1
  {{- else if $served.Has "admissionregistration.k8s.io/v1beta1/MutatingAdmissionPolicy" -}}v1beta1
  {{- end -}}
{{- else if ne $version "none" -}}{{ $version }}
{{- end -}}
{{- end -}}

{{/* API version of a MutatingAdmissionPolicy that a value asks for: v1, if nothing is known of the cluster. */}}
{{- define "netpold.mutating.version" -}}
{{- if eq .Values.mutatingAdmissionPolicy.version "none" -}}
  {{- fail "readinessGate.mode=policy, startupTaint.mode=on and enforcementDefault.enabled need MutatingAdmissionPolicy; mutatingAdmissionPolicy.version is none" -}}
{{- end -}}
admissionregistration.k8s.io/{{ include "netpold.mutating.served" . | default "v1" }}
{{- end -}}

{{/* How pods get the readiness gate: policy, webhook or off. */}}
{{- define "netpold.readinessGate" -}}
{{- $mode := include "netpold.word" .Values.readinessGate.mode -}}
{{- if .Values.uninstall -}}off
{{- else if ne $mode "auto" -}}{{ $mode }}
{{- else if include "netpold.mutating.served" . -}}policy
{{- else -}}webhook
{{- end -}}
{{- end -}}

{{/* Whether new nodes get the startup taint: on or off. */}}
{{- define "netpold.startupTaint" -}}
{{- $mode := include "netpold.word" .Values.startupTaint.mode -}}
{{- if .Values.uninstall -}}off
{{- else if ne $mode "auto" -}}{{ $mode }}
{{- else if include "netpold.mutating.served" . -}}on
{{- else -}}off
{{- end -}}
{{- end -}}

{{/* Fails below a version of Kubernetes: root, version, value. */}}
{{- define "netpold.needs" -}}
{{- $root := index . 0 -}}
{{- if semverCompare (printf "<%s.0-0" (index . 1)) $root.Capabilities.KubeVersion.Version -}}
  {{- fail (printf "%s needs Kubernetes %s or later, this is %s" (index . 2) (index . 1) $root.Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- end -}}

{{/* Whether the API server bounds the agents' writes: true or false. */}}
{{- define "netpold.leastPrivilege" -}}
{{- $enabled := .Values.leastPrivilege.enabled -}}
{{- if ne (toString $enabled) "auto" -}}
  {{- if $enabled -}}{{- include "netpold.needs" (list . "1.30" "leastPrivilege.enabled") -}}{{- end -}}
  {{- $enabled -}}
{{- else -}}{{ semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version }}
{{- end -}}
{{- end -}}

{{/* User of the agents, as in requests to the API server. */}}
{{- define "netpold.agentUser" -}}
system:serviceaccount:{{ .Release.Namespace }}:netpold
{{- end -}}

{{/* Priority classes of the namespace's pods. */}}
{{- define "netpold.priorityClasses" -}}
{{ list .Values.agent.priorityClassName .Values.controller.priorityClassName | uniq | toJson }}
{{- end -}}
