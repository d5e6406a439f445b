package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// RuleState is the state of one rule.
//
// +kubebuilder:validation:Enum=Active;NoOverlap;UnsupportedMatch;NotResolved
type RuleState string

// Values of RuleState.
const (
	RuleActive           RuleState = "Active"
	RuleNoOverlap        RuleState = "NoOverlap"        // the rule matches no traffic of the target
	RuleUnsupportedMatch RuleState = "UnsupportedMatch" // the target matches with a regular expression
	RuleNotResolved      RuleState = "NotResolved"      // the service does not exist or may not be used
)

// TailscaleRoutePolicyStatus is the observed state of a policy. Envoy Gateway writes ancestors and erases the other
// fields when it does. The operator then writes them again.
type TailscaleRoutePolicyStatus struct {
	// ancestors are the statuses of the policy that Envoy Gateway reports, one for each Gateway.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Ancestors []PolicyAncestorStatus `json:"ancestors,omitempty"`

	// observedGeneration is the generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// rules are the states of the rules.
	// +optional
	// +listType=map
	// +listMapKey=index
	// +kubebuilder:validation:MaxItems=64
	Rules []RuleStatus `json:"rules,omitempty"`

	// conditions are Accepted, ResolvedRefs, Programmed and Ready.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// RuleStatus is the state of one rule.
type RuleStatus struct {
	// index is the index of the rule in routeRules, from 0.
	// +required
	// +kubebuilder:validation:Minimum=0
	Index int32 `json:"index"`

	// state is Active, NoOverlap, UnsupportedMatch or NotResolved.
	// +required
	State RuleState `json:"state"`
}

// PolicyAncestorStatus is the status of a policy for one ancestor, as the Gateway API defines it.
type PolicyAncestorStatus struct {
	// ancestorRef is the ancestor.
	// +required
	AncestorRef AncestorReference `json:"ancestorRef"`

	// controllerName is the controller that reports the status.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	ControllerName string `json:"controllerName"`

	// conditions are the conditions that the controller reports.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// AncestorReference names an ancestor of a policy, as the Gateway API does.
type AncestorReference struct {
	// group is the ancestor's API group.
	// +optional
	// +kubebuilder:default="gateway.networking.k8s.io"
	// +kubebuilder:validation:MaxLength=253
	Group *string `json:"group,omitempty"`

	// kind is the ancestor's kind.
	// +optional
	// +kubebuilder:default=Gateway
	// +kubebuilder:validation:MaxLength=63
	Kind *string `json:"kind,omitempty"`

	// namespace is the ancestor's namespace.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Namespace *string `json:"namespace,omitempty"`

	// name is the ancestor's name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// sectionName is a part of the ancestor, such as a listener.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	SectionName *string `json:"sectionName,omitempty"`

	// port is a port of the ancestor.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port *int32 `json:"port,omitempty"`
}
