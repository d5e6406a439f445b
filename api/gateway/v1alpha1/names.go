package v1alpha1

// Names shared by all components of the gateway. The labels and annotations of tailscale.com belong to Tailscale's own
// operator, which may run in the same namespace. The gateway never sets them.
const (
	// Finalizer is on an object while external resources must be cleaned up.
	Finalizer = "gateway.tailscale.com/finalizer"

	// FieldManager is the field manager of the gateway's controllers for server-side apply.
	FieldManager = "tailplane-gateway"

	// ManagedLabel is on every object that the gateway creates, with the value "true".
	ManagedLabel = "gateway.tailscale.com/managed"

	// ProxyGroupLabel has the name of the object's TailscaleProxyGroup.
	ProxyGroupLabel = "gateway.tailscale.com/proxy-group"

	// OrdinalLabel has the ordinal of the object's replica, in decimal.
	OrdinalLabel = "gateway.tailscale.com/ordinal"

	// TailnetLabel has the name of the object's TailscaleTailnet.
	TailnetLabel = "gateway.tailscale.com/tailnet"

	// ServiceLabel has the name of the object's tailnet service, without "svc:".
	ServiceLabel = "gateway.tailscale.com/service"

	// DiscoveredLabel is on every TailscaleService that discovery creates, with the value "true".
	DiscoveredLabel = "gateway.tailscale.com/discovered"

	// SecretTypeLabel is the content of a proxy group's Secret: config, state or cert.
	SecretTypeLabel  = "gateway.tailscale.com/secret-type"
	SecretTypeConfig = "config"
	SecretTypeState  = "state"
	SecretTypeCert   = "cert"

	// DefaultAnnotation on one TailscaleTailnet, with the value "true", makes it the tailnet of proxy groups that have no tailnetRef.
	DefaultAnnotation = "gateway.tailscale.com/default"

	// SkipRemoteCleanupAnnotation, with the value "true", removes the finalizer of an object although its resources at Tailscale could not be deleted.
	SkipRemoteCleanupAnnotation = "gateway.tailscale.com/skip-remote-cleanup"

	// AuthKeyIDAnnotation and AuthKeyExpiresAnnotation, on a config Secret, have the ID and the expiry (RFC 3339) of its auth key.
	AuthKeyIDAnnotation      = "gateway.tailscale.com/authkey-id"
	AuthKeyExpiresAnnotation = "gateway.tailscale.com/authkey-expires"

	// ServiceTagsAnnotation, on a TailscaleService that discovery created, has the service's tags in its tailnet, separated by commas.
	ServiceTagsAnnotation = "gateway.tailscale.com/service-tags"

	// TranslatedAnnotation, on the revision object of a gateway, is the revision that was last rendered for Envoy Gateway.
	TranslatedAnnotation = "gateway.tailscale.com/translated-revision"

	// TranslationAnnotation, on the same object, is the observed state at that time, as JSON.
	TranslationAnnotation = "gateway.tailscale.com/translation"

	// RequestedAnnotation, on the same object, is when its revision was requested (RFC 3339).
	RequestedAnnotation = "gateway.tailscale.com/revision-requested"

	// EndpointsManager is the value of endpointslice.kubernetes.io/managed-by on the gateway's EndpointSlices.
	EndpointsManager = "gateway.tailscale.com"

	// RevisionSuffix is the suffix of the name of the TailscaleRoutePolicy that the gateway writes for each TailscaleGateway: "<name>-revision".
	RevisionSuffix = "-revision"
)

// Fixed ports of a relay pod.
const (
	HealthPort     = 9002  // /healthz, /readyz/<service>, /metrics
	DebugPort      = 9001  // loopback only
	FirstMatchPort = 10000 // the range for the ports of mapped services
	LastMatchPort  = 10999
)

// Condition types.
const (
	ConditionReady         = "Ready"         // every kind: the summary
	ConditionDegraded      = "Degraded"      // it works with the last known state
	ConditionAuthenticated = "Authenticated" // tailnet: the credential is accepted
	ConditionValidated     = "Validated"     // tailnet: the credential has the required permissions
	ConditionAccepted      = "Accepted"      // group, service, gateway, policy: the spec can be fulfilled
	ConditionResolvedRefs  = "ResolvedRefs"  // service, gateway, policy: the referenced objects exist and may be used
	ConditionProgrammed    = "Programmed"    // service, gateway, policy: it is in effect
	ConditionAvailable     = "Available"     // group: at least one replica is ready
)

// Condition reasons. They are stable: people and scripts match on them.
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
	ReasonTailnetNotPermitted = "TailnetNotPermitted" // missing or forbidden, deliberately not distinguished
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
	ReasonServiceExposed = "ServiceExposed" // a caller that reaches Envoy directly could forge addresses
)
