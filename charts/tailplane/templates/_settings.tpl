{{/* The settings files. Their keys are those of internal/settings, which rejects unknown keys;
     a test keeps the two in sync. */}}

{{- define "tailplane.signinSettings" -}}
{{- $s := omit .Values.signin "createNamespace" "namespaced" "protectedNamespaces" }}
{{- set $s "systemNamespace" .Release.Namespace | toYaml }}
{{- end }}

{{/* The settings of the node with an ordinal: {root, ordinal}. */}}
{{- define "tailplane.accessSettings" -}}
{{- $v := .root.Values }}
{{- $cluster := omit $v.cluster "caFromPod" "caData" }}
{{- if $v.cluster.caFromPod }}
{{- $_ := set $cluster "caFile" "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt" }}
{{- else }}
{{- $_ := set $cluster "caData" $v.cluster.caData }}
{{- end }}
{{- $tailnet := omit $v.tailnet "authKeySecret" }}
{{- if $v.tailnet.authKeySecret.name }}
{{- $_ := set $tailnet "authKeyFile" "/run/secrets/tailplane/authkey" }}
{{- end }}
{{- if .ordinal }}{{ $_ := set $tailnet "hostname" (printf "%s-%d" $v.tailnet.hostname .ordinal) }}{{ end }}
{{- $_ := set $tailnet "stateDir" "/var/lib/tailplane" }}
{{- $_ := set $tailnet "stateSecret" (printf "tailplane-access-%d" .ordinal) }}
{{- $f := dict "cluster" $cluster "tailnet" $tailnet "signin" (include "tailplane.signinSettings" .root | fromYaml) "api" $v.api "gossip" $v.gossip "names" $v.names "audit" (set (omit $v.audit "otlp") "keySecret" "tailplane-audit-key") "health" ":8080" }}
{{- if $v.policy.rules }}{{ $_ := set $f "policy" $v.policy }}{{ end }}
{{- if and $v.all.enabled $v.proxy.enabled }}
{{- $_ := set $f "proxy" (dict "enabled" true "hostname" $v.proxy.hostname "drain" (printf "%ds" (int $v.proxy.drainSeconds)) "requests" $v.proxy.requests) }}
{{- end }}
{{- if include "tailplane.planeInAll" .root }}
{{- $f = include "tailplane.planeSection" .root | fromYaml | merge $f }}
{{- $_ := set $f.plane "enabled" true }}
{{- $_ := set $f.audit "file" (include "tailplane.planeRecord" .root) }}
{{- end }}
{{- toYaml $f }}
{{- end }}

{{/* The settings of the access proxy's replica with an ordinal: {root, ordinal}. */}}
{{- define "tailplane.proxySettings" -}}
{{- $v := .root.Values }}
{{- $f := include "tailplane.accessSettings" . | fromYaml }}
{{- $f = pick $f "cluster" "tailnet" "signin" "audit" "health" }}
{{- $_ := unset $f.tailnet "hostname" }}
{{- if $v.policy.rules }}{{ $_ := set $f "policy" $v.policy }}{{ end }}
{{- $_ := set $f.tailnet "stateSecret" (printf "tailplane-proxy-%d" .ordinal) }}
{{- $_ := set $f.audit "keySecret" "tailplane-proxy-audit-key" }}
{{- $host := $v.proxy.hostname | default (printf "%s-api" $v.cluster.name) }}
{{- $_ := set $f "proxy" (dict "hostname" (ternary (printf "%s-%d" $host (int .ordinal)) $host (gt (int .ordinal) 0)) "drain" (printf "%ds" (int $v.proxy.drainSeconds)) "requests" $v.proxy.requests) }}
{{- toYaml $f }}
{{- end }}

{{- define "tailplane.operatorSettings" -}}
{{- dict "signin" (include "tailplane.signinSettings" . | fromYaml) "audit" (dict "keySecret" "tailplane-operator-audit-key") "health" ":8080" | toYaml }}
{{- end }}
