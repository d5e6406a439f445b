{{/* The settings files. Their keys are those of internal/settings, which rejects unknown keys;
     a test keeps the two in sync. */}}

{{- define "tailplane.signinSettings" -}}
{{- $s := omit .Values.signin "createNamespace" "namespaced" "protectedNamespaces" }}
{{- set $s "systemNamespace" .Release.Namespace | toYaml }}
{{- end }}

{{/* How kubectl reaches the API server, as the access server announces it. With plain HTTP in the tailnet,
     kubectl cannot use the proxy, so it is no default. */}}
{{- define "tailplane.accessModes" -}}
{{- $v := .Values }}
{{- $modes := $v.access.modes }}
{{- if not $modes }}
{{- $modes = ternary (list "proxy" "token") (list "token") (and $v.proxy.enabled (not $v.tailnet.insecureHTTP)) }}
{{- end }}
{{- $a := dict "modes" $modes }}
{{- with $v.access.proxies }}
{{- $_ := set $a "proxies" . }}
{{- else }}
{{- if has "proxy" $modes }}
{{- $names := list }}
{{- range $i := until (ternary 1 (int $v.proxy.replicas) $v.all.enabled) }}
{{- $names = append $names (dict "hostname" (include "tailplane.proxyHostname" (dict "root" $ "ordinal" $i))) }}
{{- end }}
{{- $_ := set $a "proxies" $names }}
{{- end }}
{{- end }}
{{- toYaml $a }}
{{- end }}

{{/* The name of the node of the access proxy with an ordinal: {root, ordinal}. */}}
{{- define "tailplane.proxyHostname" -}}
{{- $host := .root.Values.proxy.hostname | default (printf "%s-api" .root.Values.cluster.name) }}
{{- ternary (printf "%s-%d" $host (int .ordinal)) $host (gt (int .ordinal) 0) }}
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
{{- $f := dict "cluster" $cluster "tailnet" $tailnet "signin" (include "tailplane.signinSettings" .root | fromYaml) "api" $v.api "access" (include "tailplane.accessModes" .root | fromYaml) "gossip" $v.gossip "names" $v.names "audit" (set (omit $v.audit "otlp") "keySecret" "tailplane-audit-key") "health" ":8080" }}
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
{{- $_ := set $f.tailnet "stateSecret" (printf "tailplane-proxy-%d" .ordinal) }}
{{- $_ := set $f.audit "keySecret" "tailplane-proxy-audit-key" }}
{{- $_ := set $f "proxy" (dict "hostname" (include "tailplane.proxyHostname" .) "drain" (printf "%ds" (int $v.proxy.drainSeconds)) "requests" $v.proxy.requests) }}
{{- toYaml $f }}
{{- end }}

{{- define "tailplane.operatorSettings" -}}
{{- dict "signin" (include "tailplane.signinSettings" . | fromYaml) "audit" (dict "keySecret" "tailplane-operator-audit-key") "health" ":8080" | toYaml }}
{{- end }}
