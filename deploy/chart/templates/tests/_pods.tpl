{{/* Fields of every pod of the test. quotas.enabled admits only the priority classes of netpold's own pods. */}}
{{- define "netpold.test.pod" -}}
automountServiceAccountToken: false
{{- include "netpold.pullSecrets" . }}
{{- if .Values.quotas.enabled }}
priorityClassName: {{ .Values.controller.priorityClassName }}
{{- end }}
nodeSelector:
  kubernetes.io/os: linux
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  seccompProfile:
    type: RuntimeDefault
{{- end -}}

{{- define "netpold.test.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  capabilities:
    drop: ["ALL"]
resources:
  requests:
    cpu: 10m
    memory: 32Mi
  limits:
    memory: 128Mi
{{- end -}}

{{/* A pod that asks the server until the answer is as expected: root, weight, name, label, passes or dropped. */}}
{{- define "netpold.test.question" -}}
{{- $root := index . 0 -}}
---
apiVersion: v1
kind: Pod
metadata:
  name: netpold-test-{{ index . 2 }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    app.kubernetes.io/part-of: netpold-test
    netpold.io/test: {{ index . 3 }}
  annotations:
    helm.sh/hook: test
    helm.sh/hook-weight: {{ index . 1 | quote }}
    helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
spec:
  restartPolicy: Never
  activeDeadlineSeconds: 240
  {{- include "netpold.test.pod" $root | nindent 2 }}
  containers:
  - name: question
    image: {{ $root.Values.tests.image | quote }}
    command: ["/bin/sh", "-c"]
    args:
    - |
      # The address is that of the Service, by its environment variable: no DNS is needed.
      server=$NETPOLD_TEST_SERVER_SERVICE_HOST
      case $server in *:*) server="[$server]" ;; esac
      # An answer other than silence, as of a closed port, is neither "passes" nor "dropped".
      for try in $(seq 60); do
        if answer=$(/agnhost connect "$server:8080" --timeout 2s 2>&1); then
          got=passes
        else
          case $answer in TIMEOUT*) got=dropped ;; *) got=$answer ;; esac
        fi
        echo "{{ index . 3 }}: $got"
        [ "$got" = {{ index . 4 }} ] && exit 0
        sleep 1
      done
      echo "{{ index . 3 }}: expected {{ index . 4 }}"
      exit 1
    {{- include "netpold.test.container" $root | nindent 4 }}
{{- end -}}
