{{/* plane.yaml, in the words of internal/settings; a test keeps the two in step. */}}
{{- define "tailplane.planeSettings" -}}
{{- $v := .Values }}
{{- $tailnet := omit $v.tailnet "authKeySecret" "hostname" "insecureHTTP" }}
{{- if $v.tailnet.authKeySecret.name }}
{{- $_ := set $tailnet "authKeyFile" "/run/secrets/tailplane/authkey" }}
{{- end }}
{{- $_ := set $tailnet "stateDir" "/var/lib/tailplane" }}
{{- $_ := set $tailnet "stateSecret" "tailplane-plane" }}
{{- $f := dict "cluster" (pick $v.cluster "name" "id") "tailnet" $tailnet "signin" (dict "namespace" $v.signin.namespace "systemNamespace" .Release.Namespace "capability" $v.signin.capability)
  "plane" (pick $v.plane "identity" "capability" "contact" "emailDomains" "roles")
  "audit" (dict "file" "/var/log/tailplane/audit.jsonl" "required" $v.audit.required "keySecret" "tailplane-plane-audit-key") "health" ":9091" }}
{{- toYaml $f }}
{{- end }}
