{{/* plane.yaml, in the words of internal/settings; a test keeps the two in step. */}}
{{- define "tailplane.planeSettings" -}}
{{- $v := .Values }}
{{- $tailnet := omit $v.tailnet "authKeySecret" "hostname" "insecureHTTP" }}
{{- if $v.tailnet.authKeySecret.name }}
{{- $_ := set $tailnet "authKeyFile" "/run/secrets/tailplane/authkey" }}
{{- end }}
{{- $_ := set $tailnet "stateDir" "/var/lib/tailplane" }}
{{- $_ := set $tailnet "stateSecret" "tailplane-plane" }}
{{- $f := include "tailplane.planeSection" . | fromYaml }}
{{- $_ := set $f "cluster" (pick $v.cluster "name" "id") }}
{{- $_ := set $f "tailnet" $tailnet }}
{{- $_ := set $f "signin" (dict "namespace" $v.signin.namespace "systemNamespace" .Release.Namespace "capability" $v.signin.capability) }}
{{- $_ := set $f "audit" (dict "file" (include "tailplane.planeRecord" .) "required" $v.audit.required "keySecret" "tailplane-plane-audit-key") }}
{{- $_ := set $f "health" ":9091" }}
{{- toYaml $f }}
{{- end }}

{{/* What only the plane is told, in a process of its own or in that of all. */}}
{{- define "tailplane.planeSection" -}}
{{- $v := .Values }}
{{- $plane := pick $v.plane "identity" "capability" "contact" "emailDomains" "roles" "exposures" "logs" "prometheus" }}
{{- if $v.plane.gitops.repository }}
{{- $_ := set $plane "gitops" (set (omit $v.plane.gitops "credentialSecret" (ternary "path" "" (eq $v.plane.gitops.format "tfvars"))) "credentialDir" "/run/secrets/tailplane-gitops") }}
{{- end }}
{{- $f := dict "plane" $plane }}
{{- if $v.fleet.enabled }}
{{- $_ := set $f "fleet" (pick $v.fleet "namespace" "approval" "approvers" "cacheNamespaces" "clusterCIDRs" "requireOwnApp") }}
{{- end }}
{{- toYaml $f }}
{{- end }}

{{/* The record's file: the plane shows what stands in it. */}}
{{- define "tailplane.planeRecord" -}}
/var/log/tailplane/audit.jsonl
{{- end }}

{{/* Whether the process of all plays the plane, too: then there is no other. */}}
{{- define "tailplane.planeInAll" -}}
{{- if and .Values.plane.enabled .Values.all.enabled }}yes{{ end }}
{{- end }}

{{/* The plane's Secrets, as a JSON array: the states of its node and of those of exposures, whose
     names the program makes in the same way, and the key of a record of its own. */}}
{{- define "tailplane.planeSecrets" -}}
{{- $all := include "tailplane.planeInAll" . }}
{{- $node := ternary "tailplane-access-0-plane" "tailplane-plane" (eq $all "yes") }}
{{- $names := list $node }}
{{- if not $all }}
{{- $names = append $names "tailplane-plane-audit-key" }}
{{- end }}
{{- range .Values.plane.exposures }}
{{- $names = append $names (printf "%s-exposure-%s" $node .name) }}
{{- end }}
{{- toJson $names }}
{{- end }}

{{/* Mounts and volumes of what only the plane has. */}}
{{- define "tailplane.planeMounts" -}}
- {name: record, mountPath: {{ include "tailplane.planeRecord" . | dir }}}
{{- if .Values.plane.gitops.repository }}
- {name: gitops, mountPath: /run/secrets/tailplane-gitops, readOnly: true}
{{- end }}
{{- end }}

{{- define "tailplane.planeVolumes" -}}
{{- $p := .Values.plane }}
{{- if not $p.record.persistent }}
- name: record
  emptyDir: {sizeLimit: {{ $p.record.size }}}
{{- end }}
{{- if $p.gitops.repository }}
- name: gitops
  secret:
    secretName: {{ required "plane.gitops.credentialSecret: name the Secret with a credential for the repository" $p.gitops.credentialSecret }}
    defaultMode: 0440
{{- end }}
{{- end }}

{{/* What outlives the pod: the record, if that is wanted. */}}
{{- define "tailplane.planeClaims" -}}
{{- $p := .Values.plane }}
{{- if $p.record.persistent -}}
volumeClaimTemplates:
- metadata:
    name: record
  spec:
    accessModes: [ReadWriteOnce]
    {{- with $p.record.storageClassName }}
    storageClassName: {{ . }}
    {{- end }}
    resources:
      requests: {storage: {{ $p.record.size }}}
{{- end }}
{{- end }}

{{/* Where only the plane goes. */}}
{{- define "tailplane.planeEgress" -}}
{{- range .Values.plane.exposures }}
- to: # {{ .name }}: which port its pods have, its Service knows
  - namespaceSelector:
      matchLabels: {kubernetes.io/metadata.name: {{ index (splitList "." (urlParse .upstream).hostname) 1 }}}
{{- end }}
{{- with .Values.plane.prometheus.url }}
{{- $at := urlParse . }}
{{- $name := splitList "." $at.hostname }}
{{- if and (ge (len $name) 3) (eq (index $name 2) "svc") }}
- to: # numbers over time
  - namespaceSelector:
      matchLabels: {kubernetes.io/metadata.name: {{ index $name 1 }}}
{{- else }}
- ports: # numbers over time, from outside the cluster
  - {protocol: TCP, port: {{ regexFind "[0-9]+$" (trimPrefix $at.hostname $at.host) | default (ternary 443 80 (eq $at.scheme "https")) }}}
  to:
  {{- include "tailplane.anywhere" $ | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}
