package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Names that every part of Tailplane must agree upon.
const (
	// SigninFinalizer is on every TkaSignin from its creation on, so that there
	// is no moment in which it could vanish and leave a binding behind.
	SigninFinalizer = "tailplane.dev/signin"

	// SigninUIDLabel carries, on everything made for a TkaSignin, its UID.
	SigninUIDLabel = "tailplane.dev/signin-uid"

	// SigninNamespaceLabel carries, on everything made for a TkaSignin, its
	// namespace: an operator leaves alone what another one made.
	SigninNamespaceLabel = "tailplane.dev/signin-namespace"

	// ManagedByLabel is on everything made by Tailplane, with the value ManagedBy.
	ManagedByLabel = "app.kubernetes.io/managed-by"
	ManagedBy      = "tailplane"

	// LoginAnnotation carries the full login on bindings and ServiceAccounts:
	// "@" is not legal in a label.
	LoginAnnotation = "tailplane.dev/login"

	// LastAttemptAnnotation carries the time of the operator's last attempt to
	// provision a TkaSignin, RFC 3339.
	LastAttemptAnnotation = "tailplane.dev/last-attempted-sign-in"

	// EndAskedAnnotation is put on a TkaSignin by the access server before it
	// deletes it. One that is deleted without it was deleted by somebody else, and
	// the operator records that.
	EndAskedAnnotation = "tailplane.dev/end-asked"
)

// Types of the conditions of a TkaSignin.
const (
	ConditionReady       = "Ready"       // a token can be had
	ConditionProvisioned = "Provisioned" // the ServiceAccount and its bindings exist
	ConditionExpired     = "Expired"     // it is over; never goes back
)

// A TkaSignin is one person's temporary access to this cluster from one device.
// The access server writes it; the operator makes a ServiceAccount and bindings
// for it and removes them when it is over. Deleting it ends the access.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=tkasignins,singular=tkasignin,shortName=signin,categories=tailplane,scope=Namespaced
// +kubebuilder:printcolumn:name="User",type=string,JSONPath=`.spec.user.login`
// +kubebuilder:printcolumn:name="Device",type=string,JSONPath=`.spec.device.name`
// +kubebuilder:printcolumn:name="Role",type=string,JSONPath=`.status.role`,description="what is bound, not what is wished"
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Until",type=string,JSONPath=`.status.validUntil`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="the name must fit into a label"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.conditions) || !oldSelf.status.conditions.exists(c, c.type == 'Expired' && c.status == 'True') || (has(self.status) && has(self.status.conditions) && self.status.conditions.exists(c, c.type == 'Expired' && c.status == 'True'))",message="what has expired stays expired"
type TkaSignin struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is who may do what, and for how long. Only the access server writes it.
	// +required
	Spec TkaSigninSpec `json:"spec"`

	// status is what the operator did about it.
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

// TkaSigninSpec is who may do what, and for how long. All of it but the period
// and the time of asking is immutable: another role is another TkaSignin.
//
// +kubebuilder:validation:XValidation:rule="has(self.namespaces) == has(oldSelf.namespaces)",message="namespaces are immutable"
type TkaSigninSpec struct {
	// user is the person that signed in.
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="user is immutable"
	User SigninUser `json:"user"`

	// device is the node of the tailnet that the sign-in belongs to.
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="device is immutable"
	Device SigninDevice `json:"device"`

	// role is the name of the ClusterRole to bind. The operator binds it only if
	// it is on its allow-list.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="role is immutable"
	Role string `json:"role"`

	// namespaces are where the role holds, by one RoleBinding each. Empty means
	// the whole cluster, by one ClusterRoleBinding.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=50
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="namespaces are immutable"
	Namespaces []string `json:"namespaces,omitempty"`

	// period is how long the sign-in lasts from askedAt on, a Go duration such
	// as 8h; at most 8760h. The operator refuses what is outside its bounds.
	// +required
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s') && duration(self) <= duration('8760h')",message="period must be more than 0 and at most 8760h"
	Period metav1.Duration `json:"period"`

	// askedAt is when the person last asked to sign in. Asking again extends.
	// +required
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$`
	AskedAt metav1.Time `json:"askedAt"`
}

// SigninUser is a person, or a tagged node, as the tailnet names them.
type SigninUser struct {
	// login is the whole login name, such as alice@example.com, which is the
	// identity; node:<name> for a tagged node.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=254
	// +kubebuilder:validation:Pattern=`^[^\x00-\x20\x7f]+$`
	Login string `json:"login"`

	// id is the tailnet's number for the user.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ID string `json:"id,omitempty"`

	// displayName is how the user wishes to be called. It identifies nobody.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[^\x00-\x1f\x7f]*$`
	DisplayName string `json:"displayName,omitempty"`
}

// SigninDevice is a node of a tailnet.
type SigninDevice struct {
	// id is the stable node id.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	ID string `json:"id"`

	// name is the node's name at the time of the sign-in.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`

	// tailnet is the name of the tailnet that vouches for the user and the device.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Tailnet string `json:"tailnet,omitempty"`
}

// SigninPhase is the summary of a TkaSignin's conditions.
//
// +kubebuilder:validation:Enum=Pending;Ready;Refused;Ending;Expired
type SigninPhase string

// TkaSigninStatus is what the operator did. Only the operator writes it.
type TkaSigninStatus struct {
	// observedGeneration is the generation of the spec that this status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// phase is the summary of the conditions.
	// +optional
	Phase SigninPhase `json:"phase,omitempty"`

	// validUntil is when the access ends.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$`
	ValidUntil *metav1.Time `json:"validUntil,omitempty"`

	// role is the ClusterRole that is bound; empty while nothing is.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Role string `json:"role,omitempty"`

	// namespaces are where the role is bound; empty for the whole cluster.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=50
	// +kubebuilder:validation:items:MaxLength=63
	Namespaces []string `json:"namespaces,omitempty"`

	// missingNamespaces are those of the wished namespaces that this cluster
	// does not have. The role is bound there when they appear.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=50
	// +kubebuilder:validation:items:MaxLength=63
	MissingNamespaces []string `json:"missingNamespaces,omitempty"`

	// serviceAccount is the account that tokens are made for.
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

	// uid tells it from another ServiceAccount of that name.
	// +required
	UID types.UID `json:"uid"`
}
