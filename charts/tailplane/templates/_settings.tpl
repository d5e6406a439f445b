{{/* The settings files. Their keys are those of internal/settings, which rejects unknown keys;
     a test keeps the two in sync. */}}

{{- define "tailplane.signinSettings" -}}
{{- $s := omit .Values.signin "createNamespace" "namespaced" "protectedNamespaces" }}
{{- $issuers := list }}
{{- range $i, $issuer := .Values.signin.oidc.issuers }}
{{- if $issuer.keysConfigMap }}
{{- $issuer = set (omit $issuer "keysConfigMap") "keysFile" (printf "/etc/tailplane-oidc/%d.json" $i) }}
{{- end }}
{{- $issuers = append $issuers $issuer }}
{{- end }}
{{- $_ := set $s "oidc" (dict "issuers" $issuers) }}
{{- set $s "systemNamespace" .Release.Namespace | toYaml }}
{{- end }}

{{/* The files of the issuers' keys, as sources of a projected volume: the ConfigMap of issuer N is
     the file N.json. */}}
{{- define "tailplane.issuerKeys" -}}
{{- range $i, $issuer := .Values.signin.oidc.issuers }}
{{- with $issuer.keysConfigMap }}
- configMap:
    name: {{ .name }}
    items: [{key: {{ .key | default "keys.json" | quote }}, path: {{ $i }}.json}]
{{- end }}
{{- end }}
{{- end }}

{{/* How kubectl reaches the API server, as the access server announces it. */}}
{{- define "tailplane.accessModes" -}}
{{- $v := .Values }}
{{- $modes := $v.access.modes }}
{{- if not $modes }}
{{- $proxied := ternary (list "proxy") (list "proxy" "token") (and (not (empty $v.policy.rules)) (not $v.policy.allowTokenMode)) }}
{{- $modes = ternary $proxied (list "token") $v.proxy.enabled }}
{{- end }}
{{- $a := dict "modes" $modes }}
{{- with $v.access.proxies }}
{{- $_ := set $a "proxies" . }}
{{- else }}
{{- if has "proxy" $modes }}
{{- $names := list }}
{{- if $v.proxy.service }}
{{- $names = list (dict "hostname" (trimPrefix "svc:" $v.proxy.service)) }}
{{- else }}
{{- range $i := until (ternary 1 (int $v.proxy.replicas) $v.all.enabled) }}
{{- $names = append $names (dict "hostname" (include "tailplane.proxyHostname" (dict "root" $ "ordinal" $i))) }}
{{- end }}
{{- end }}
{{- $_ := set $a "proxies" $names }}
{{- end }}
{{- end }}
{{- with $v.access.proxyTags }}
{{- $_ := set $a "proxyTags" . }}
{{- end }}
{{- toYaml $a }}
{{- end }}

{{/* The name of the node of the access proxy with an ordinal: {root, ordinal}. With a service, the plain
     name is left to it. */}}
{{- define "tailplane.proxyHostname" -}}
{{- $p := .root.Values.proxy }}
{{- $host := $p.hostname | default (printf "%s-api" .root.Values.cluster.name) }}
{{- ternary (printf "%s-%d" $host (int .ordinal)) $host (or (gt (int .ordinal) 0) (and (not (empty $p.service)) (empty $p.hostname))) }}
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
{{- $f := dict "cluster" $cluster "tailnet" $tailnet "signin" (include "tailplane.signinSettings" .root | fromYaml) "requests" $v.requests "api" $v.api "access" (include "tailplane.accessModes" .root | fromYaml) "gossip" $v.gossip "names" $v.names "audit" (set (omit $v.audit "otlp") "keySecret" "tailplane-audit-key") "health" ":8080" }}
{{- if $v.policy.rules }}{{ $_ := set $f "policy" $v.policy }}{{ end }}
{{- if and $v.all.enabled $v.proxy.enabled }}
{{- $_ := set $f "proxy" (dict "enabled" true "hostname" (ternary (include "tailplane.proxyHostname" (dict "root" .root "ordinal" 0)) $v.proxy.hostname (not (empty $v.proxy.service))) "drain" (printf "%ds" (int $v.proxy.drainSeconds)) "requests" $v.proxy.requests "recording" (include "tailplane.recording" .root | fromYaml) "access" $v.proxy.access "tags" $v.proxy.tags "limits" $v.proxy.limits) }}
{{- if $v.proxy.planes }}{{ $_ := set $f.proxy "planes" $v.proxy.planes }}{{ end }}
{{- end }}
{{- if and $v.all.enabled $v.proxy.enabled $v.proxy.service }}{{ $_ := set $f.proxy "service" $v.proxy.service }}{{ end }}
{{- if include "tailplane.planeInAll" .root }}
{{- $f = include "tailplane.planeSection" .root | fromYaml | merge $f }}
{{- $_ := set $f.plane "enabled" true }}
{{- $_ := set $f.audit "file" (include "tailplane.planeRecord" .root) }}
{{- end }}
{{- toYaml $f }}
{{- end }}

{{/* Where recordings go: {root}. */}}
{{- define "tailplane.recording" -}}
{{- $r := .Values.proxy.recording }}
{{- $f := dict "input" $r.input }}
{{- if $r.volume.enabled }}
{{- $_ := set $f "dir" "/var/lib/tailplane-recordings" }}
{{- else if $r.recorder }}
{{- $_ := set $f "recorder" $r.recorder }}
{{- $_ := set $f "tag" (required "proxy.recording.tag: name the tag of the recorder's node" $r.tag) }}
{{- end }}
{{- toYaml $f }}
{{- end }}

{{/* The settings of the access proxy's replica with an ordinal: {root, ordinal}. */}}
{{- define "tailplane.proxySettings" -}}
{{- $v := .root.Values }}
{{- $f := include "tailplane.accessSettings" . | fromYaml }}
{{- $f = pick $f "cluster" "tailnet" "signin" "requests" "audit" "health" }}
{{- $_ := unset $f.tailnet "hostname" }}
{{- if $v.policy.rules }}{{ $_ := set $f "policy" $v.policy }}{{ end }}
{{- $_ := set $f.tailnet "stateSecret" (printf "tailplane-proxy-%d" .ordinal) }}
{{- $_ := set $f.audit "keySecret" "tailplane-proxy-audit-key" }}
{{- $_ := set $f "proxy" (dict "hostname" (include "tailplane.proxyHostname" .) "drain" (printf "%ds" (int $v.proxy.drainSeconds)) "requests" $v.proxy.requests "recording" (include "tailplane.recording" .root | fromYaml) "access" $v.proxy.access "tags" $v.proxy.tags "limits" $v.proxy.limits) }}
{{- if $v.proxy.planes }}{{ $_ := set $f.proxy "planes" $v.proxy.planes }}{{ end }}
{{- with $v.proxy.service }}{{ $_ := set $f.proxy "service" . }}{{ end }}
{{- toYaml $f }}
{{- end }}

{{- define "tailplane.operatorSettings" -}}
{{- dict "signin" (omit (include "tailplane.signinSettings" . | fromYaml) "oidc") "requests" .Values.requests "audit" (dict "keySecret" "tailplane-operator-audit-key") "health" ":8080" | toYaml }}
{{- end }}
