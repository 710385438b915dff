{{- define "kvtap.name" -}}
{{- if eq .Values.mode "fleet" -}}{{ .Release.Name }}-fleet{{- else -}}{{ .Release.Name }}{{- end -}}
{{- end }}

{{- define "kvtap.labels" -}}
app.kubernetes.io/name: kvtap
app.kubernetes.io/component: {{ .Values.mode }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- /* What finds the pods. A sidecar's are other people's, and carry only this. */}}
{{- define "kvtap.selector" -}}
kvtap: {{ .Values.mode }}
{{- if eq .Values.mode "fleet" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- end }}

{{- define "kvtap.image" -}}
{{- with .Values.image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end -}}
{{- end -}}
{{- end }}

{{- /* A number of bytes as kvtap.yaml writes it, in MiB. */}}
{{- define "kvtap.mib" -}}
{{- $text := toString . -}}
{{- if hasSuffix "GiB" $text }}{{ mul 1024 (trimSuffix "GiB" $text | int64) -}}
{{- else if hasSuffix "MiB" $text }}{{ trimSuffix "MiB" $text | int64 -}}
{{- else if hasSuffix "KiB" $text }}{{ div (trimSuffix "KiB" $text | int64) 1024 -}}
{{- else }}{{ div (. | int64) 1048576 }}{{ end -}}
{{- end }}

{{- /* process + index + ranks x (queue + recovery) + one replay, rounded up: deploy/README.md, "Memory". */}}
{{- define "kvtap.memory" -}}
{{- if .Values.resources.limits.memory -}}
{{ .Values.resources.limits.memory }}
{{- else -}}
{{- $sizing := .Files.Get "sizing.yaml" | fromYaml -}}
{{- $config := .Values.config -}}
{{- $blocks := dig "limits" "blocks_in_all" 8000000 $config | int64 -}}
{{- $index := div (add (mul $blocks ($sizing.bytes_per_block | int64)) 1048575) 1048576 -}}
{{- $queue := include "kvtap.mib" (dig "defaults" "queue_bytes" "256MiB" $config) | int64 -}}
{{- $ranks := 0 -}}
{{- range $config.feeds }}{{ $ranks = add $ranks (.ranks | default 1 | int64) }}{{ end -}}
{{- /* One that follows others over NATS fetches so many of their snapshots at a time. */ -}}
{{- if dig "relay" "servers" "" $config }}{{ $ranks = max $ranks (dig "relay" "joins" 4 $config | int64) }}{{ end -}}
{{- $need := add $sizing.base_mib $index (mul (max 1 $ranks) (add $queue $sizing.rank_mib)) $sizing.replay_mib -}}
{{- $round := $sizing.round_mib | int64 -}}
{{ mul (div (add $need (sub $round 1)) $round) $round }}Mi
{{- end -}}
{{- end }}

{{- define "kvtap.port" -}}
{{- . | toString | splitList ":" | last -}}
{{- end }}

{{- /* The container, of either shape. A library chart that includes it gives it the root context of this one. */}}
{{- define "kvtap.container" -}}
{{- $grpc := include "kvtap.port" (first .Values.config.grpc.listen) | int -}}
{{- $admin := include "kvtap.port" .Values.config.admin.listen | int -}}
name: kvtap
image: {{ include "kvtap.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args: [serve, --config, /etc/kvtap/kvtap.yaml]
env:
  - { name: POD_NAME, valueFrom: { fieldRef: { fieldPath: metadata.name } } }
  - { name: POD_IP, valueFrom: { fieldRef: { fieldPath: status.podIP } } }
  {{- if .Values.tls.secret }}
  - { name: KVTAP_GRPC_TLS_CERT, value: /etc/kvtap-tls/tls.crt }
  - { name: KVTAP_GRPC_TLS_KEY, value: /etc/kvtap-tls/tls.key }
  {{- if .Values.tls.clientCertificates }}
  - { name: KVTAP_GRPC_TLS_CLIENT_CA, value: /etc/kvtap-tls/ca.crt }
  {{- end }}
  {{- end }}
  {{- if .Values.nats.secret }}
  - { name: KVTAP_NATS_NKEY, value: /etc/kvtap-nats/user.nk }
  - { name: KVTAP_NATS_CA, value: /etc/kvtap-nats/ca.crt }
  {{- end }}
ports:
  - { name: kvtap-grpc, containerPort: {{ $grpc }}, protocol: TCP }
  - { name: kvtap-admin, containerPort: {{ $admin }}, protocol: TCP }
startupProbe:
  httpGet: { path: /ready, port: {{ $admin }}, scheme: HTTP }
  periodSeconds: 1
  failureThreshold: 60
livenessProbe:
  httpGet: { path: /live, port: {{ $admin }}, scheme: HTTP }
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: { path: /ready, port: {{ $admin }}, scheme: HTTP }
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 3
resources:
  requests:
    {{- toYaml .Values.resources.requests | nindent 4 }}
  limits:
    {{- with omit .Values.resources.limits "memory" }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    memory: {{ include "kvtap.memory" . }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  readOnlyRootFilesystem: true
  allowPrivilegeEscalation: false
  capabilities: { drop: [ALL] }
  seccompProfile: { type: RuntimeDefault }
volumeMounts:
  - { name: kvtap-config, mountPath: /etc/kvtap, readOnly: true }
  {{- if .Values.tls.secret }}
  - { name: kvtap-tls, mountPath: /etc/kvtap-tls, readOnly: true }
  {{- end }}
  {{- if .Values.nats.secret }}
  - { name: kvtap-nats, mountPath: /etc/kvtap-nats, readOnly: true }
  {{- end }}
  {{- if .Values.snapshots.size }}
  - { name: kvtap-snapshots, mountPath: /var/lib/kvtap }
  {{- end }}
{{- end }}

{{- define "kvtap.volumes" -}}
- name: kvtap-config
  configMap: { name: {{ include "kvtap.name" . }} }
{{- with .Values.tls.secret }}
- name: kvtap-tls
  secret: { secretName: {{ . }} }
{{- end }}
{{- with .Values.nats.secret }}
- name: kvtap-nats
  secret: { secretName: {{ . }} }
{{- end }}
{{- if .Values.snapshots.size }}
- name: kvtap-snapshots
  emptyDir: { sizeLimit: {{ .Values.snapshots.size }} }
{{- end }}
{{- end }}
