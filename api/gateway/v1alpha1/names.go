package v1alpha1

// Names that every part of the gateway must agree upon. The labels and
// annotations of tailscale.com belong to Tailscale's own operator, which may run
// in the same namespace: none of them is ever put on an object of ours.
const (
	// Finalizer is on an object while there is something outside to clean up.
	Finalizer = "gateway.tailscale.com/finalizer"

	// FieldManager is the name under which the gateway's controllers apply.
	FieldManager = "tailplane-gateway"

	// ManagedLabel is on everything that the gateway makes, with the value "true".
	ManagedLabel = "gateway.tailscale.com/managed"

	// ProxyGroupLabel carries the name of the TailscaleProxyGroup that an object is for.
	ProxyGroupLabel = "gateway.tailscale.com/proxy-group"

	// OrdinalLabel carries the ordinal of the replica that an object is for, in decimal.
	OrdinalLabel = "gateway.tailscale.com/ordinal"

	// TailnetLabel carries the name of the TailscaleTailnet that an object is for.
	TailnetLabel = "gateway.tailscale.com/tailnet"

	// ServiceLabel carries the name of the tailnet service that an object is for, without "svc:".
	ServiceLabel = "gateway.tailscale.com/service"

	// DiscoveredLabel is on every TailscaleService that discovery made, with the value "true".
	DiscoveredLabel = "gateway.tailscale.com/discovered"

	// SecretTypeLabel says what a Secret of a proxy group holds: config, state or cert.
	SecretTypeLabel  = "gateway.tailscale.com/secret-type"
	SecretTypeConfig = "config"
	SecretTypeState  = "state"
	SecretTypeCert   = "cert"

	// DefaultAnnotation on one TailscaleTailnet, with the value "true", makes it the
	// tailnet of proxy groups that name none.
	DefaultAnnotation = "gateway.tailscale.com/default"

	// SkipRemoteCleanupAnnotation, with the value "true", lets an object go although
	// what it has at Tailscale could not be deleted.
	SkipRemoteCleanupAnnotation = "gateway.tailscale.com/skip-remote-cleanup"

	// AuthKeyIDAnnotation and AuthKeyExpiresAnnotation, on a config Secret, say which
	// auth key it holds, by id, and until when (RFC 3339).
	AuthKeyIDAnnotation      = "gateway.tailscale.com/authkey-id"
	AuthKeyExpiresAnnotation = "gateway.tailscale.com/authkey-expires"

	// ServiceTagsAnnotation, on a TailscaleService that discovery made, carries the
	// tags that the service has in its tailnet, with commas between them.
	ServiceTagsAnnotation = "gateway.tailscale.com/service-tags"

	// TranslatedAnnotation, on the revision object of a gateway, is the revision
	// that was last rendered for Envoy Gateway.
	TranslatedAnnotation = "gateway.tailscale.com/translated-revision"

	// TranslationAnnotation, beside it, is what was seen then, as JSON.
	TranslationAnnotation = "gateway.tailscale.com/translation"

	// RequestedAnnotation, on the same object, is when its revision was asked for (RFC 3339).
	RequestedAnnotation = "gateway.tailscale.com/revision-requested"

	// EndpointsManager is the value of endpointslice.kubernetes.io/managed-by on the
	// gateway's EndpointSlices.
	EndpointsManager = "gateway.tailscale.com"

	// RevisionSuffix ends the name of the TailscaleRoutePolicy that the gateway keeps
	// for each TailscaleGateway: "<name>-revision".
	RevisionSuffix = "-revision"
)

// Ports of a relay pod that everybody must agree upon.
const (
	HealthPort     = 9002  // /healthz, /readyz/<service>, /metrics
	DebugPort      = 9001  // loopback only
	FirstMatchPort = 10000 // the range that mapped services are given ports from
	LastMatchPort  = 10999
)

// Types of conditions.
const (
	ConditionReady         = "Ready"         // every kind: the summary
	ConditionDegraded      = "Degraded"      // it works on what was known last
	ConditionAuthenticated = "Authenticated" // tailnet: the credential is accepted
	ConditionValidated     = "Validated"     // tailnet: the credential may do what is needed
	ConditionAccepted      = "Accepted"      // group, service, gateway, policy: the spec can be kept
	ConditionResolvedRefs  = "ResolvedRefs"  // service, gateway, policy: what is named exists and may be used
	ConditionProgrammed    = "Programmed"    // service, gateway, policy: it is in effect
	ConditionAvailable     = "Available"     // group: at least one replica is ready
)

// Reasons of conditions. They are stable: people and scripts match on them.
const (
	ReasonReady      = "Ready"
	ReasonPending    = "Pending"
	ReasonFailed     = "Failed"
	ReasonAsExpected = "AsExpected"
	ReasonAccepted   = "Accepted"
	ReasonResolved   = "ResolvedRefs"
	ReasonProgrammed = "Programmed"
	ReasonDeleting   = "Deleting"

	// of a tailnet
	ReasonTokenIssued               = "TokenIssued"
	ReasonSecretNotFound            = "SecretNotFound"
	ReasonSecretKeyMissing          = "SecretKeyMissing"
	ReasonSecretNamespaceNotAllowed = "SecretNamespaceNotAllowed"
	ReasonCredentialsMissing        = "CredentialsMissing"
	ReasonInvalidCredentials        = "InvalidCredentials"
	ReasonTokenExchangeFailed       = "TokenExchangeFailed"
	ReasonAPIUnavailable            = "APIUnavailable"
	ReasonNoDevices                 = "NoDevices"
	ReasonInsufficientPermissions   = "InsufficientPermissions"
	ReasonTagsNotPermitted          = "TagsNotPermitted"
	ReasonTailnetNotFound           = "TailnetNotFound"
	ReasonRateLimited               = "RateLimited"
	ReasonCircuitOpen               = "CircuitOpen"
	ReasonPartialScopes             = "PartialScopes"

	// of a proxy group
	ReasonTailnetNotSpecified = "TailnetNotSpecified"
	ReasonTailnetNotPermitted = "TailnetNotPermitted" // missing or forbidden: one answer
	ReasonNamespaceNotManaged = "NamespaceNotManaged"
	ReasonUnsupportedRuntime  = "UnsupportedRuntime"
	ReasonInvalidTarget       = "InvalidTarget"
	ReasonPortsExhausted      = "PortsExhausted"
	ReasonCreating            = "Creating"
	ReasonScaling             = "Scaling"
	ReasonAuthKeyFailed       = "AuthKeyFailed"
	ReasonTailnetNotReady     = "TailnetNotReady"
	ReasonPodsNotReady        = "PodsNotReady"
	ReasonNamespaceForbidden  = "NamespaceForbidden" // the operator's account may not read there

	// of a service
	ReasonRefNotPermitted     = "RefNotPermitted"
	ReasonBackendNotFound     = "BackendNotFound"
	ReasonTargetNotFound      = "TargetNotFound"
	ReasonTargetForbidden     = "TargetForbidden"
	ReasonVIPNotOwned         = "VIPNotOwned"
	ReasonVIPConflict         = "VIPConflict"
	ReasonServiceNameConflict = "ServiceNameConflict"
	ReasonAwaitingApproval    = "AwaitingApproval"
	ReasonNoCertificate       = "NoCertificate"
	ReasonNoReadyEndpoints    = "NoReadyEndpoints"

	// of a gateway
	ReasonGatewayNotFound              = "GatewayNotFound"
	ReasonNotEnvoyGateway              = "NotEnvoyGateway"
	ReasonNoVirtualHost                = "NoVirtualHost"
	ReasonSecurityAmbiguous            = "SecurityAmbiguous"
	ReasonExtensionNotCalled           = "ExtensionNotCalled"
	ReasonEnvoyGatewayConfigIncomplete = "EnvoyGatewayConfigIncomplete"
	ReasonProxyGroupLimit              = "ProxyGroupLimit"
	ReasonDuplicateOperatorID          = "DuplicateOperatorID"

	// of a route policy
	ReasonConflicted     = "Conflicted"
	ReasonServiceExposed = "ServiceExposed" // who reaches Envoy directly could lie about addresses
)
