{{/* fleet.yaml, with the keys of internal/settings; a test keeps the two in sync. The list of
     permitted writers is only in the admission policies. */}}
{{- define "tailplane.fleetSettings" -}}
{{- $f := omit .Values.fleet "enabled" "replicas" "createNamespace" "writers" "writerGroups" "nodeExemptNamespaces" "adoptNamespaces" "holdAdmission" "forgePorts"
  "resources" "nodeSelector" "tolerations" "podAnnotations" "canary" }}
{{- if .Values.fleet.canary.enabled }}
{{- $_ := set $f "canary" (dict "image" (include "tailplane.image" .) "targets" .Values.fleet.canary.targets) }}
{{- end }}
{{- dict "fleet" $f "health" ":9091" | toYaml }}
{{- end }}

{{/* The ClusterRoles that the fleet binds in namespaces of runners. */}}
{{- define "tailplane.fleetBinds" -}}
["tailplane-fleet-namespace", "tailplane-arc-manager", "tailplane-gitlab-manager", "tailplane-runner-kubernetes"]
{{- end }}

{{/* The user name of the fleet in the admission policies. */}}
{{- define "tailplane.fleetUsername" -}}
system:serviceaccount:{{ .Values.fleet.namespace }}:tailplane-fleet
{{- end }}

{{/* The plane's account, if it may write without dry-run: a CEL expression. */}}
{{- define "tailplane.fleetPlane" -}}
request.userInfo.username == '{{ include "tailplane.username" (dict "root" . "part" "plane") }}'
{{- end }}

{{/* Errors in the fleet's values. */}}
{{- define "tailplane.checkFleet" -}}
{{- $v := .Values }}
{{- $f := $v.fleet }}
{{- $kept := list .Release.Namespace $v.signin.namespace "kube-system" "kube-public" "kube-node-lease" "default" }}
{{- if $v.gateway.enabled }}
{{- $kept = concat $kept (list $v.gateway.namespace) $v.gateway.proxyNamespaces }}
{{- end }}
{{- range $name, $ns := dict "fleet.namespace" $f.namespace "fleet.sharedNamespace" $f.sharedNamespace }}
{{- if or (has $ns (append $kept $f.arcNamespace)) (hasPrefix "tailplane-org-" $ns) }}
- {{ $name }} is {{ $ns }}: the fleet can read all Secrets there; set a namespace that nothing else uses
{{- end }}
{{- end }}
{{- if eq $f.namespace $f.sharedNamespace }}
- fleet.namespace and fleet.sharedNamespace are both {{ $f.namespace }}: jobs would run in the namespace of all organisations' credentials; set different namespaces
{{- end }}
{{- if and (eq $f.approval "git") (not $f.writers) (not $f.writerGroups) }}
- fleet.writers is missing: set the account that applies merged changes, such as system:serviceaccount:argocd:argocd-application-controller, or set fleet.writerGroups
{{- end }}
{{- if and (eq $f.approval "plane") (not $v.plane.enabled) }}
- fleet.approval is plane, and plane.enabled is false: no enrollment could be approved; enable the plane or set fleet.approval to git
{{- end }}
{{- end }}
