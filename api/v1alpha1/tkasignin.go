package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Names shared by all components of Tailplane.
const (
	// SigninFinalizer is on every TkaSignin from its creation, so that the API server cannot delete it while its bindings exist.
	SigninFinalizer = "tailplane.dev/signin"

	// SigninUIDLabel has the UID of the TkaSignin. All objects that the operator creates for it have this label.
	SigninUIDLabel = "tailplane.dev/signin-uid"

	// SigninNamespaceLabel has the namespace of the TkaSignin. An operator ignores the objects of another operator.
	SigninNamespaceLabel = "tailplane.dev/signin-namespace"

	// ManagedByLabel is on every object that Tailplane creates, with the value ManagedBy.
	ManagedByLabel = "app.kubernetes.io/managed-by"
	ManagedBy      = "tailplane"

	// LoginAnnotation has the full login on bindings and ServiceAccounts. A label cannot have it, because "@" is not legal there.
	LoginAnnotation = "tailplane.dev/login"

	// LastAttemptAnnotation has the time of the operator's last attempt to provision a TkaSignin, RFC 3339.
	LastAttemptAnnotation = "tailplane.dev/last-attempted-sign-in"

	// EndRequestedAnnotation is set by the access server before it deletes a TkaSignin. If it is missing, another client deleted the TkaSignin, and the operator records that.
	// Its value is "access", or why the end does not turn sign-in on first use off: "idle" or "replaced", and the time, RFC 3339.
	EndRequestedAnnotation = "tailplane.dev/end-asked"
)

// Types of the conditions of a TkaSignin.
const (
	ConditionReady       = "Ready"       // the person can get a token
	ConditionProvisioned = "Provisioned" // the ServiceAccount and its bindings exist
	ConditionExpired     = "Expired"     // the sign-in has ended; never becomes false again
)

// A TkaSignin is one person's temporary access to this cluster from one device. The access server writes it. The
// operator creates a ServiceAccount and bindings for it, and deletes them when the access expires. Deleting the
// TkaSignin ends the access.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=tkasignins,singular=tkasignin,shortName=signin,categories=tailplane,scope=Namespaced
// +kubebuilder:printcolumn:name="User",type=string,JSONPath=`.spec.user.login`
// +kubebuilder:printcolumn:name="Device",type=string,JSONPath=`.spec.device.name`
// +kubebuilder:printcolumn:name="Session",type=string,JSONPath=`.spec.session`,description="empty for the default session"
// +kubebuilder:printcolumn:name="Role",type=string,JSONPath=`.status.role`,description="the role that is bound, not the requested one"
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Until",type=string,JSONPath=`.status.validUntil`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="the name must be at most 63 characters, to fit into a label"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.conditions) || !oldSelf.status.conditions.exists(c, c.type == 'Expired' && c.status == 'True') || (has(self.status) && has(self.status.conditions) && self.status.conditions.exists(c, c.type == 'Expired' && c.status == 'True'))",message="an expired sign-in stays expired"
type TkaSignin struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the person, the device, the role and the period. Only the access server writes it.
	// +required
	Spec TkaSigninSpec `json:"spec"`

	// status is the observed state. Only the operator writes it.
	// +optional
	Status TkaSigninStatus `json:"status,omitempty"`
}

// TkaSigninList is a list of sign-ins.
//
// +kubebuilder:object:root=true
type TkaSigninList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	// items are the sign-ins.
	Items []TkaSignin `json:"items"`
}

// TkaSigninSpec is the person, the device, the role and the period. Only period, askedAt, reason, rule, onUse, idle and usedAt can be changed, and record can be
// extended. Another
// role needs another TkaSignin.
//
// +kubebuilder:validation:XValidation:rule="has(self.namespaces) == has(oldSelf.namespaces)",message="namespaces are immutable"
// +kubebuilder:validation:XValidation:rule="has(self.session) == has(oldSelf.session)",message="session is immutable"
// +kubebuilder:validation:XValidation:rule="has(self.bind) == has(oldSelf.bind)",message="bind is immutable"
// +kubebuilder:validation:XValidation:rule="has(self.request) == has(oldSelf.request)",message="request is immutable"
// +kubebuilder:validation:XValidation:rule="has(self.oidc) == has(oldSelf.oidc)",message="oidc is immutable"
// +kubebuilder:validation:XValidation:rule="has(self.record) || !has(oldSelf.record)",message="record can only be extended"
// +kubebuilder:validation:XValidation:rule="!has(self.bind) || !has(self.namespaces)",message="with bind, each role has its own namespaces"
// +kubebuilder:validation:XValidation:rule="has(self.request) ? has(self.session) && self.session == self.request.name : !has(self.session) || !self.session.startsWith('req-')",message="the session of an access request is its name, and only its sign-in has a name that starts with req-"
type TkaSigninSpec struct {
	// user is the person who signed in.
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="user is immutable"
	User SigninUser `json:"user"`

	// device is the tailnet node that the sign-in belongs to.
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="device is immutable"
	Device SigninDevice `json:"device"`

	// session separates several sign-ins of one device, such as those of two terminals. Absent: the default session.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="session is immutable"
	// +kubebuilder:validation:XValidation:rule="self != 'default'",message="the default session has no name"
	Session string `json:"session,omitempty"`

	// request is the access request that the sign-in uses. Absent: the sign-in stands on a rule of the tailnet policy.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="request is immutable"
	Request *SigninRequest `json:"request,omitempty"`

	// oidc is the OIDC token with which the sign-in began: which job or which person uses the device. Absent: it began without a token.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="oidc is immutable"
	OIDC *SigninToken `json:"oidc,omitempty"`

	// reason is why the person asked for the access, in their own words. Each login may change it.
	// +optional
	// +kubebuilder:validation:MaxLength=500
	// +kubebuilder:validation:Pattern=`^[^\x00-\x1f\x7f]*$`
	Reason string `json:"reason,omitempty"`

	// rule is the name of the rule of the tailnet policy that gave the access, if it has one. Each login may change it.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`
	Rule string `json:"rule,omitempty"`

	// record are the streams through the access proxy that must be recorded: exec, attach and portForward. It can only be extended. A sign-in with a record gets no token. Absent: the settings of the access proxy decide.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=3
	// +kubebuilder:validation:items:Enum=exec;attach;portForward
	// +kubebuilder:validation:XValidation:rule="oldSelf.all(s, s in self)",message="record can only be extended"
	Record []string `json:"record,omitempty"`

	// role is the name of the ClusterRole to bind. The operator binds only roles on its allow-list. With bind it is a summary for people.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="role is immutable"
	Role string `json:"role"`

	// namespaces are the namespaces where the role applies, with one RoleBinding each. Empty: the whole cluster, with one ClusterRoleBinding.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=50
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="namespaces are immutable"
	Namespaces []string `json:"namespaces,omitempty"`

	// bind are the roles to bind, where one role and a list of namespaces cannot express them. Absent: role and namespaces.
	// +optional
	// +listType=map
	// +listMapKey=role
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="bind is immutable"
	Bind []SigninBind `json:"bind,omitempty"`

	// period is the duration of the sign-in from askedAt, as a Go duration such as 8h, at most 8760h. The operator refuses a period outside its configured limits.
	// +required
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s') && duration(self) <= duration('8760h')",message="period must be more than 0 and at most 8760h"
	Period metav1.Duration `json:"period"`

	// askedAt is the time of the last sign-in request. A new request extends the sign-in.
	// +required
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$`
	AskedAt metav1.Time `json:"askedAt"`

	// onUse says that a request through the access proxy began the sign-in, and no login has extended it since.
	// +optional
	OnUse bool `json:"onUse,omitempty"`

	// idle is how long a sign-in with onUse lasts without use, as a Go duration. The access server ends it then.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`
	Idle *metav1.Duration `json:"idle,omitempty"`

	// usedAt is when the access proxies last reported that a sign-in with onUse is in use. It is up to a tenth of idle old.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$`
	UsedAt *metav1.Time `json:"usedAt,omitempty"`
}

// SigninBind is a role and where it applies. With neither namespaces nor namespaceSelector it applies in the whole cluster, with one ClusterRoleBinding.
type SigninBind struct {
	// role is the name of the ClusterRole.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Role string `json:"role"`

	// namespaces are the namespaces where the role applies, with one RoleBinding each.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=50
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`
	Namespaces []string `json:"namespaces,omitempty"`

	// namespaceSelector selects the namespaces where the role applies by their labels, as in kubectl get -l. The operator follows changes of the labels. Together with namespaces, both must fit.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	NamespaceSelector string `json:"namespaceSelector,omitempty"`
}

// SigninBound is a bound role.
type SigninBound struct {
	// role is the name of the ClusterRole.
	// +required
	// +kubebuilder:validation:MaxLength=253
	Role string `json:"role"`

	// namespaces are the namespaces where the role is bound. Empty for the whole cluster.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=50
	// +kubebuilder:validation:items:MaxLength=63
	Namespaces []string `json:"namespaces,omitempty"`
}

// SigninUser is a person or a tagged node, as identified by the tailnet.
type SigninUser struct {
	// login is the full login name, such as alice@example.com, or node:<name> for a tagged node. It is the identity.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=254
	// +kubebuilder:validation:Pattern=`^[^\x00-\x20\x7f]+$`
	Login string `json:"login"`

	// id is the ID of the user in the tailnet.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ID string `json:"id,omitempty"`

	// displayName is the name for display. It is not an identity.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[^\x00-\x1f\x7f]*$`
	DisplayName string `json:"displayName,omitempty"`
}

// SigninToken is what an OIDC token says about the job or the person that uses the device. It does not have the token.
type SigninToken struct {
	// issuer is the URL of the issuer.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^https?://[\x21-\x7e]+$`
	Issuer string `json:"issuer"`

	// subject is the job or the person, as its issuer names it. It is a part of the identity of the sign-in.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^[^\x00-\x1f\x7f]+$`
	Subject string `json:"subject"`

	// audience is the audience of the token.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Audience string `json:"audience"`

	// claims are the claims of the token that rules of the tailnet policy required, with the values of the token.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	Claims map[string]SigninClaim `json:"claims,omitempty"`
}

// SigninClaim is the value of a claim.
//
// +kubebuilder:validation:MaxLength=1024
type SigninClaim string

// SigninDevice is a tailnet node.
type SigninDevice struct {
	// id is the stable node ID.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	ID string `json:"id"`

	// name is the node's name at the time of the sign-in.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`

	// tailnet is the name of the tailnet that identified the user and the device.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Tailnet string `json:"tailnet,omitempty"`
}

// SigninPhase summarizes the conditions of a TkaSignin.
//
// +kubebuilder:validation:Enum=Pending;Ready;Refused;Ending;Expired
type SigninPhase string

// TkaSigninStatus is the observed state of a TkaSignin. Only the operator writes it.
type TkaSigninStatus struct {
	// observedGeneration is the generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// phase summarizes the conditions.
	// +optional
	Phase SigninPhase `json:"phase,omitempty"`

	// validUntil is when the access ends.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$`
	ValidUntil *metav1.Time `json:"validUntil,omitempty"`

	// role is the bound ClusterRole; several are separated by commas. Empty while none is bound.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	Role string `json:"role,omitempty"`

	// namespaces are the namespaces where the role is bound. Empty for the whole cluster.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=50
	// +kubebuilder:validation:items:MaxLength=63
	Namespaces []string `json:"namespaces,omitempty"`

	// bind are the bound roles, if there are several. A role whose selector selects no namespace is not bound.
	// +optional
	// +listType=map
	// +listMapKey=role
	// +kubebuilder:validation:MaxItems=8
	Bind []SigninBound `json:"bind,omitempty"`

	// missingNamespaces are the requested namespaces that do not exist in this cluster. The operator binds the role when they appear.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=50
	// +kubebuilder:validation:items:MaxLength=63
	MissingNamespaces []string `json:"missingNamespaces,omitempty"`

	// serviceAccount is the ServiceAccount whose tokens the person gets.
	// +optional
	ServiceAccount *SigninAccount `json:"serviceAccount,omitempty"`

	// conditions are Ready, Provisioned and Expired.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// SigninAccount names one ServiceAccount in the TkaSignin's namespace.
type SigninAccount struct {
	// name is the ServiceAccount's name.
	// +required
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// uid distinguishes it from another ServiceAccount with the same name.
	// +required
	UID types.UID `json:"uid"`
}
