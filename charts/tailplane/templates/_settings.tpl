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
{{- if include "tailplane.planeInAll" .root }}
{{- $f = include "tailplane.planeSection" .root | fromYaml | merge $f }}
{{- $_ := set $f.plane "enabled" true }}
{{- $_ := set $f.audit "file" (include "tailplane.planeRecord" .root) }}
{{- end }}
{{- toYaml $f }}
{{- end }}

{{- define "tailplane.operatorSettings" -}}
{{- dict "signin" (omit (include "tailplane.signinSettings" . | fromYaml) "oidc") "audit" (dict "keySecret" "tailplane-operator-audit-key") "health" ":8080" | toYaml }}
{{- end }}
