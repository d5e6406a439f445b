{{/* Names are fixed and do not contain the release name: the admission policies and the
     programs use one name per object. So a cluster can have only one installation. */}}

{{/* The account of a part: its own, or the account of the process that runs all parts. */}}
{{- define "tailplane.account" -}}
{{- if .root.Values.all.enabled }}tailplane{{ else }}tailplane-{{ .part }}{{ end }}
{{- end }}

{{/* The user name of an account in the admission policies. */}}
{{- define "tailplane.username" -}}
system:serviceaccount:{{ .root.Release.Namespace }}:{{ include "tailplane.account" . }}
{{- end }}

{{/* The number of tailnet nodes. Each has its own state. */}}
{{- define "tailplane.nodes" -}}
{{- if .Values.all.enabled }}1{{ else if .Values.access.enabled }}{{ .Values.access.replicas }}{{ else }}0{{ end }}
{{- end }}

{{/* The Secrets that the access server may read and write, as a JSON list. */}}
{{- define "tailplane.accessSecrets" -}}
{{- $names := list }}
{{- range $i := until (int (include "tailplane.nodes" .)) }}
{{- $names = append $names (printf "tailplane-access-%d" $i) }}
{{- end }}
{{- concat $names (list "tailplane-cluster-key" "tailplane-audit-key") | toJson }}
{{- end }}

{{/* The Secrets that the access proxy may read and write, as a JSON list: the states of its
     nodes, and the key of its audit log. */}}
{{- define "tailplane.proxySecrets" -}}
{{- if .Values.all.enabled }}
{{- list "tailplane-access-0-proxy" | toJson }}
{{- else }}
{{- $names := list }}
{{- range $i := until (int .Values.proxy.replicas) }}
{{- $names = append $names (printf "tailplane-proxy-%d" $i) }}
{{- end }}
{{- append $names "tailplane-proxy-audit-key" | toJson }}
{{- end }}
{{- end }}

{{/* Labels of an object: {root, part}; part is optional. */}}
{{- define "tailplane.labels" -}}
app.kubernetes.io/name: tailplane
{{- with .part }}
app.kubernetes.io/component: {{ . }}
{{- end }}
app.kubernetes.io/part-of: tailplane
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end }}

{{/* Labels that select the pods of a part. They never change. */}}
{{- define "tailplane.selector" -}}
app.kubernetes.io/name: tailplane
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "tailplane.image" -}}
{{- $i := .Values.image -}}
{{ $i.repository }}{{ if $i.digest }}@{{ $i.digest }}{{ else }}:{{ $i.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{/* A list of strings in CEL. The schema does not allow quotes in them. */}}
{{- define "tailplane.cel" -}}
[{{ range $i, $s := . }}{{ if $i }}, {{ end }}'{{ $s }}'{{ end }}]
{{- end }}

{{/* Checks that the schema cannot express, or not with a clear message. All errors are reported
     at once. */}}
{{- define "tailplane.check" -}}
{{- $v := .Values }}
{{- $bad := list }}
{{- $access := or $v.access.enabled $v.all.enabled }}
{{- if not $v.image.repository }}
{{- $bad = append $bad "image.repository is missing: set the repository of the tailplaned image" }}
{{- end }}
{{- if not $v.signin.roles }}
{{- $bad = append $bad "signin.roles is missing: list the ClusterRoles that sign-ins may get, such as [view, edit]" }}
{{- end }}
{{- if and $access (not $v.cluster.name) }}
{{- $bad = append $bad "cluster.name is missing: set the display name of the cluster, such as prod-eu" }}
{{- end }}
{{- if and $access (not $v.cluster.server) }}
{{- $bad = append $bad "cluster.server is missing: set the URL of the API server, as people reach it" }}
{{- end }}
{{- if and $access (not $v.cluster.caData) (not $v.cluster.caFromPod) }}
{{- $bad = append $bad "cluster.caData is missing: set the certificate authority of cluster.server, as PEM, or to system if its certificate is public; or set cluster.caFromPod if pods use the same authority" }}
{{- end }}
{{- if and $v.cluster.caData $v.cluster.caFromPod }}
{{- $bad = append $bad "cluster.caData and cluster.caFromPod are both set; keep one" }}
{{- end }}
{{- if and $v.all.enabled (or $v.access.enabled $v.operator.enabled) }}
{{- $bad = append $bad "all.enabled plays access and operator in one process: set access.enabled and operator.enabled to false" }}
{{- end }}
{{- if and (has "proxy" $v.access.modes) (not $v.proxy.enabled) (not $v.access.proxies) }}
{{- $bad = append $bad "access.modes has proxy, and there is none: set proxy.enabled, or list proxies that run elsewhere in access.proxies" }}
{{- end }}
{{- if eq $v.signin.namespace .Release.Namespace }}
{{- $bad = append $bad (printf "signin.namespace is the chart's own namespace %s: an account that may create tokens for sign-ins could create one for the operator; set another namespace" .Release.Namespace) }}
{{- end }}
{{- if $v.gateway.enabled }}
{{- range $line := include "tailplane.checkGateway" . | splitList "\n" }}
{{- with trimPrefix "- " (trim $line) }}{{- $bad = append $bad . }}{{- end }}
{{- end }}
{{- end }}
{{- if $v.fleet.enabled }}
{{- range $line := include "tailplane.checkFleet" . | splitList "\n" }}
{{- with trimPrefix "- " (trim $line) }}{{- $bad = append $bad . }}{{- end }}
{{- end }}
{{- end }}
{{- if $bad }}
{{- fail (printf "\n\n- %s\n" (join "\n- " $bad)) }}
{{- end }}
{{- end }}
