{{/* The pod of a part: {root, part, values, config}. It satisfies the restricted Pod Security
     Standard and writes only to the volumes that it names. It gets a token because it calls the
     API server. */}}
{{- define "tailplane.pod" -}}
{{- $v := .root.Values -}}
{{- $issuerKeys := include "tailplane.issuerKeys" .root | trim -}}
{{- $plane := and (eq .part "all") (include "tailplane.planeInAll" .root) -}}
metadata:
  labels:
    {{- include "tailplane.selector" . | nindent 4 }}
    app.kubernetes.io/part-of: tailplane
  annotations:
    # Settings are read only at the start.
    tailplane.dev/settings: {{ .settings | sha256sum | trunc 16 | quote }}
    {{- with .values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ if eq .part "all" }}tailplane{{ else }}tailplane-{{ .part }}{{ end }}
  automountServiceAccountToken: true
  enableServiceLinks: false
  {{- if and $v.proxy.enabled (has .part (list "proxy" "all")) }}
  # Open streams may continue for proxy.drainSeconds.
  terminationGracePeriodSeconds: {{ add 45 (int $v.proxy.drainSeconds) }}
  {{- else }}
  terminationGracePeriodSeconds: 45
  {{- end }}
  {{- with $v.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with $v.image.pullSecrets }}
  imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    fsGroup: 65532
    seccompProfile: {type: RuntimeDefault}
  {{- with .values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .values.tolerations }}
  tolerations:
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- if gt (int (.values.replicas | default 1)) 1 }}
  topologySpreadConstraints:
  {{- range $key := list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - maxSkew: 1
    topologyKey: {{ $key }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "tailplane.selector" $ | nindent 8 }}
  {{- end }}
  {{- end }}
  containers:
  - name: tailplaned
    image: {{ include "tailplane.image" .root | quote }}
    imagePullPolicy: {{ $v.image.pullPolicy }}
    args: [{{ .part }}, "--config=/etc/tailplane/{{ .config }}", "--log-level={{ $v.logLevel }}"]
    {{- $otlp := $v.audit.otlp }}
    {{- if or (ne .part "operator") $otlp.endpoint }}
    env:
    {{- if ne .part "operator" }}
    - name: POD_NAME # each replica has its own settings, named after its pod
      valueFrom:
        fieldRef: {fieldPath: metadata.name}
    {{- end }}
    {{- with $otlp.endpoint }}
    - {name: OTEL_EXPORTER_OTLP_ENDPOINT, value: {{ . | quote }}}
    {{- with $otlp.headersSecret }}
    {{- if .name }}
    - name: OTEL_EXPORTER_OTLP_HEADERS
      valueFrom:
        secretKeyRef: {name: {{ .name }}, key: {{ .key | quote }}}
    {{- end }}
    {{- end }}
    {{- end }}
    {{- end }}
    ports:
    - {name: health, containerPort: 8080}
    livenessProbe:
      httpGet: {path: /livez, port: health}
      periodSeconds: 10
      timeoutSeconds: 5
      failureThreshold: 6
    readinessProbe:
      httpGet: {path: /readyz, port: health}
      periodSeconds: 5
      timeoutSeconds: 5
      failureThreshold: 1
    resources:
      {{- toYaml .values.resources | nindent 6 }}
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {drop: [ALL]}
    volumeMounts:
    - {name: settings, mountPath: /etc/tailplane, readOnly: true}
    {{- if ne .part "operator" }}
    - {name: state, mountPath: /var/lib/tailplane}
    {{- if $v.tailnet.authKeySecret.name }}
    - {name: authkey, mountPath: /run/secrets/tailplane, readOnly: true}
    {{- end }}
    {{- if $issuerKeys }}
    - {name: issuer-keys, mountPath: /etc/tailplane-oidc, readOnly: true}
    {{- end }}
    {{- end }}
    {{- if $plane }}
    {{- include "tailplane.planeMounts" .root | nindent 4 }}
    {{- end }}
    {{- if and $v.proxy.enabled $v.proxy.recording.volume.enabled (has .part (list "proxy" "all")) }}
    - {name: recordings, mountPath: /var/lib/tailplane-recordings}
    {{- end }}
  volumes:
  - name: settings
    configMap: {name: {{ if eq .part "all" }}tailplane{{ else }}tailplane-{{ .part }}{{ end }}}
  {{- if ne .part "operator" }}
  # May be lost: the keys of the node are in its Secret.
  - name: state
    emptyDir: {sizeLimit: 64Mi}
  {{- with $v.tailnet.authKeySecret }}
  {{- if .name }}
  # Needed only for the first start, and may be removed afterwards.
  - name: authkey
    secret:
      secretName: {{ .name }}
      items: [{key: {{ .key | quote }}, path: authkey}]
      defaultMode: 0440
      optional: true
  {{- end }}
  {{- end }}
  {{- with $issuerKeys }}
  # The server reads the files again, so new keys need no restart.
  - name: issuer-keys
    projected:
      sources:
      {{- . | nindent 6 }}
  {{- end }}
  {{- end }}
  {{- if $plane }}
  {{- with include "tailplane.planeVolumes" .root | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- end }}
{{- end }}
