{{/* plane.yaml, with the keys of internal/settings; a test keeps the two in sync. */}}
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

{{/* Settings of the plane only, in its own process or in the process that runs all parts. */}}
{{- define "tailplane.planeSection" -}}
{{- $v := .Values }}
{{- $plane := pick $v.plane "identity" "capability" "contact" "emailDomains" "roles" "exposures" "logs" "prometheus" }}
{{- if $v.plane.accessProxies }}{{ $_ := set $plane "accessProxies" $v.plane.accessProxies }}{{ end }}
{{- if $v.plane.recorder }}{{ $_ := set $plane "recorder" $v.plane.recorder }}{{ end }}
{{- if $v.plane.gitops.repository }}
{{- $_ := set $plane "gitops" (set (omit $v.plane.gitops "credentialSecret" (ternary "path" "" (eq $v.plane.gitops.format "tfvars"))) "credentialDir" "/run/secrets/tailplane-gitops") }}
{{- end }}
{{- $f := dict "plane" $plane }}
{{- if $v.fleet.enabled }}
{{- $_ := set $f "fleet" (pick $v.fleet "namespace" "approval" "approvers" "cacheNamespaces" "clusterCIDRs" "requireOwnApp") }}
{{- end }}
{{- toYaml $f }}
{{- end }}

{{/* The file of the audit log, whose content the plane shows. */}}
{{- define "tailplane.planeRecord" -}}
/var/log/tailplane/audit.jsonl
{{- end }}

{{/* Whether the process that runs all parts also runs the plane. Then there is no separate one. */}}
{{- define "tailplane.planeInAll" -}}
{{- if and .Values.plane.enabled .Values.all.enabled }}yes{{ end }}
{{- end }}

{{/* The plane's Secrets, as a JSON array: the states of its node and of the exposures' nodes,
     and the key of its audit log. The program builds the names of the exposures in the same
     way. */}}
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

{{/* Mounts and volumes that only the plane has. */}}
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

{{/* Storage that outlives the pod: the audit log, if enabled. */}}
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

{{/* Destinations that only the plane connects to. */}}
{{- define "tailplane.planeEgress" -}}
{{- range .Values.plane.exposures }}
- to: # {{ .name }}: its Service determines the port of its pods
  - namespaceSelector:
      matchLabels: {kubernetes.io/metadata.name: {{ index (splitList "." (urlParse .upstream).hostname) 1 }}}
{{- end }}
{{- with .Values.plane.prometheus.url }}
{{- $at := urlParse . }}
{{- $name := splitList "." $at.hostname }}
{{- if and (ge (len $name) 3) (eq (index $name 2) "svc") }}
- to: # metrics queries
  - namespaceSelector:
      matchLabels: {kubernetes.io/metadata.name: {{ index $name 1 }}}
{{- else }}
- ports: # metrics queries to a server outside the cluster
  - {protocol: TCP, port: {{ regexFind "[0-9]+$" (trimPrefix $at.hostname $at.host) | default (ternary 443 80 (eq $at.scheme "https")) }}}
  to:
  {{- include "tailplane.anywhere" $ | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}
