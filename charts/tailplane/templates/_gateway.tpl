{{/* gateway.yaml, with the keys of internal/settings; a test keeps the two in sync. */}}
{{- define "tailplane.gatewaySettings" -}}
{{- $g := .Values.gateway }}
{{- $proxy := merge (dict "image" ($g.proxy.image | default (include "tailplane.image" .)) "pullPolicy" .Values.image.pullPolicy
  "pullSecrets" .Values.image.pullSecrets "monitoringNamespaces" .Values.networkPolicy.monitoringNamespaces) (deepCopy $g.proxy) }}
{{- $e := $g.envoyGateway }}
{{- $f := dict "operatorID" $g.operatorID "clusterDomain" $g.clusterDomain "credentialNamespaces" $g.credentialNamespaces "proxyNamespaces" $g.proxyNamespaces
  "consumerNamespaces" $g.consumerNamespaces "tailnet" $g.tailnet "proxy" $proxy "extension" (pick $g.extensionServer "maxMessageSize" "deadline")
  "envoy" (dict "namespace" $e.namespace "controller" $e.controller "discovery" $e.discovery) }}
{{- toYaml $f }}
{{- end }}

{{/* The required configuration of Envoy Gateway: the output of `tailplaned gateway
     envoy-config`; a test compares them. */}}
{{- define "tailplane.envoyGatewayConfig" -}}
{{- $g := .Values.gateway -}}
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: EnvoyGateway
gateway: {controllerName: {{ $g.envoyGateway.controller }}}
provider: {type: Kubernetes}
extensionManager:
  maxMessageSize: {{ $g.extensionServer.maxMessageSize }}
  failOpen: false # with true, access rules have no effect while the server is unavailable
  policyResources:
    - {group: gateway.tailscale.com, version: v1alpha1, kind: TailscaleRoutePolicy}
  backendResources:
    - {group: gateway.tailscale.com, version: v1alpha1, kind: TailscaleService}
  hooks:
    xdsTranslator:
      post: [Route, VirtualHost, HTTPListener, Cluster, Translation]
      translation: # secrets, with their private keys, are never sent
        route: {includeAll: true}
        cluster: {includeAll: true}
        listener: {includeAll: false}
        secret: {includeAll: false}
  service:
{{- if eq $g.extensionServer.mode "sidecar" }}
    unix: {path: /var/run/tailplane/extension.sock}
{{- else }}
    fqdn: {hostname: tailscale-extension-server.{{ $g.namespace }}.svc.{{ $g.clusterDomain | default "cluster.local" }}, port: {{ $g.extensionServer.port }}}
    tls:
      certificateRef: {name: tailplane-extension-ca, namespace: {{ $g.namespace }}} # the authority, under tls.crt
      clientCertificateRef: {name: tailplane-extension-client, namespace: {{ $g.namespace }}}
{{- end }}
{{- end }}

{{/* The namespaces in which the gateway creates relays, as a JSON list. */}}
{{- define "tailplane.relayNamespaces" -}}
{{- concat (list .Values.gateway.namespace) .Values.gateway.proxyNamespaces | uniq | toJson }}
{{- end }}

{{/* Errors in the gateway's values. */}}
{{- define "tailplane.checkGateway" -}}
{{- $v := .Values }}
{{- $g := $v.gateway }}
{{- $kept := list .Release.Namespace $v.signin.namespace "kube-system" "kube-public" "kube-node-lease" "default" }}
{{- range $name, $list := dict "gateway.namespace" (list $g.namespace) "gateway.proxyNamespaces" $g.proxyNamespaces }}
{{- range $ns := $list }}
{{- if has $ns $kept }}
- {{ $name }} names {{ $ns }}: the gateway creates pods there, so it can use all Secrets and accounts in it; set a namespace that nothing else uses
{{- end }}
{{- end }}
{{- end }}
{{- range $ns := $g.credentialNamespaces }}
{{- if has $ns (list $.Release.Namespace $v.signin.namespace "kube-system") }}
- gateway.credentialNamespaces names {{ $ns }}, but the gateway may not read the Secrets there; set another namespace
{{- end }}
{{- end }}
{{- if and $g.oauth.mountFiles (not $g.oauth.existingSecret) }}
- gateway.oauth.existingSecret is missing: set the Secret with client_id and client_secret to mount
{{- end }}
{{- end }}
