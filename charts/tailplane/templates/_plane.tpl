{{/* plane.yaml, in the words of internal/settings; a test keeps the two in step. */}}
{{- define "tailplane.planeSettings" -}}
{{- $v := .Values }}
{{- $tailnet := omit $v.tailnet "authKeySecret" "hostname" "insecureHTTP" }}
{{- if $v.tailnet.authKeySecret.name }}
{{- $_ := set $tailnet "authKeyFile" "/run/secrets/tailplane/authkey" }}
{{- end }}
{{- $_ := set $tailnet "stateDir" "/var/lib/tailplane" }}
{{- $_ := set $tailnet "stateSecret" "tailplane-plane" }}
{{- $plane := pick $v.plane "identity" "capability" "contact" "emailDomains" "roles" "exposures" "logs" "prometheus" }}
{{- if $v.plane.gitops.repository }}
{{- $_ := set $plane "gitops" (set (omit $v.plane.gitops "credentialSecret" (ternary "path" "" (eq $v.plane.gitops.format "tfvars"))) "credentialDir" "/run/secrets/tailplane-gitops") }}
{{- end }}
{{- $f := dict "cluster" (pick $v.cluster "name" "id") "tailnet" $tailnet "signin" (dict "namespace" $v.signin.namespace "systemNamespace" .Release.Namespace "capability" $v.signin.capability)
  "plane" $plane
  "audit" (dict "file" "/var/log/tailplane/audit.jsonl" "required" $v.audit.required "keySecret" "tailplane-plane-audit-key") "health" ":9091" }}
{{- if $v.fleet.enabled }}
{{- $_ := set $f "fleet" (pick $v.fleet "namespace" "approval" "approvers" "cacheNamespaces" "clusterCIDRs" "requireOwnApp") }}
{{- end }}
{{- toYaml $f }}
{{- end }}

{{/* The Secrets of the nodes of exposures, as a JSON array; the program makes the same names. */}}
{{- define "tailplane.exposureSecrets" -}}
{{- $names := list }}
{{- range .Values.plane.exposures }}
{{- $names = append $names (printf "tailplane-plane-exposure-%s" .name) }}
{{- end }}
{{- toJson $names }}
{{- end }}
