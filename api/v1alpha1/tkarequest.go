package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// RequestPrefix begins the name of every TkaRequest, and the name of the session of its sign-in, which is the same.
const RequestPrefix = "req-"

// A TkaRequest is one person's request for access to this cluster, with the decisions of its approvers. The access
// server writes it. Its state follows from the stored times and from who may still approve; nothing stores it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=tkarequests,singular=tkarequest,shortName=request,categories=tailplane,scope=Namespaced
// +kubebuilder:printcolumn:name="User",type=string,JSONPath=`.spec.requester.login`
// +kubebuilder:printcolumn:name="Role",type=string,JSONPath=`.spec.bind[*].role`
// +kubebuilder:printcolumn:name="Period",type=string,JSONPath=`.spec.period`
// +kubebuilder:printcolumn:name="Needed",type=integer,JSONPath=`.spec.approvals`
// +kubebuilder:printcolumn:name="Approvals",type=string,JSONPath=`.status.approvals[*].login`
// +kubebuilder:printcolumn:name="Decision",type=string,JSONPath=`.status.decision.is`
// +kubebuilder:printcolumn:name="Used",type=string,JSONPath=`.status.use.at`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^req-[0-9a-f]{16,40}$')",message="the name must be req- and 16 to 40 hexadecimal digits"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.approvals) || (has(self.status) && has(self.status.approvals) && oldSelf.status.approvals.all(a, a in self.status.approvals))",message="approvals can only be added"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.approvals) || !(has(oldSelf.status.use) || has(oldSelf.status.decision)) || (has(self.status) && has(self.status.approvals) && size(self.status.approvals) == size(oldSelf.status.approvals))",message="no approval is added after the use or the decision"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || has(oldSelf.status.approvals) || !(has(oldSelf.status.use) || has(oldSelf.status.decision)) || !has(self.status) || !has(self.status.approvals)",message="no approval is added after the use or the decision"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.usableUntil) || (has(self.status) && has(self.status.usableUntil) && self.status.usableUntil == oldSelf.status.usableUntil)",message="usableUntil is set once"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.decision) || (has(self.status) && has(self.status.decision) && self.status.decision == oldSelf.status.decision)",message="decision is set once"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.use) || (has(self.status) && has(self.status.use) && self.status.use == oldSelf.status.use)",message="use is set once"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.revoked) || (has(self.status) && has(self.status.revoked) && self.status.revoked == oldSelf.status.revoked)",message="revoked is set once"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.reviewed) || (has(self.status) && has(self.status.reviewed) && self.status.reviewed == oldSelf.status.reviewed)",message="reviewed is set once"
// +kubebuilder:validation:XValidation:rule="!has(self.status) || !has(self.status.use) || (has(self.status.approvals) ? size(self.status.approvals) : 0) >= self.spec.approvals",message="it is not used before it has enough approvals"
// +kubebuilder:validation:XValidation:rule="!has(self.status) || !has(self.status.usableUntil) || (has(self.status.approvals) ? size(self.status.approvals) : 0) >= self.spec.approvals",message="usableUntil is not set before it has enough approvals"
// +kubebuilder:validation:XValidation:rule="!has(self.status) || !has(self.status.approvals) || self.status.approvals.all(a, a.login.lowerAscii() != self.spec.requester.login.lowerAscii() && (!has(self.spec.requester.id) || a.userID != self.spec.requester.id) && a.device != self.spec.requester.device.id)",message="people do not approve their own requests, by login, user ID or device"
// +kubebuilder:validation:XValidation:rule="!has(self.status) || !has(self.status.approvals) || self.status.approvals.all(a, !has(a.period) || (duration(a.period) > duration('0s') && duration(a.period) <= duration(self.spec.period)))",message="an approval can only shorten the period"
// +kubebuilder:validation:XValidation:rule="!has(self.status) || !has(self.status.use) || (duration(self.status.use.period) > duration('0s') && duration(self.status.use.period) <= duration(self.spec.period))",message="the use is at most as long as the request"
// +kubebuilder:validation:XValidation:rule="!has(self.status) || !has(self.status.use) || self.status.use.device == self.spec.requester.device.id",message="only the device that asked uses the request"
// +kubebuilder:validation:XValidation:rule="!has(self.status) || !has(self.status.reviewed) || (has(self.spec.breakGlass) && self.spec.breakGlass && has(self.status.use))",message="only a break-glass use is reviewed"
// +kubebuilder:validation:XValidation:rule="!has(self.status) || !has(self.status.reviewed) || (self.status.reviewed.login.lowerAscii() != self.spec.requester.login.lowerAscii() && (!has(self.spec.requester.id) || self.status.reviewed.userID != self.spec.requester.id) && self.status.reviewed.device != self.spec.requester.device.id)",message="people do not review their own uses, by login, user ID or device"
type TkaRequest struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what the person asked for. It never changes: a changed request is another request.
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec is immutable"
	Spec TkaRequestSpec `json:"spec"`

	// status has the decisions and the use. Fields are only added.
	// +optional
	Status TkaRequestStatus `json:"status,omitempty"`
}

// TkaRequestList is a list of access requests.
//
// +kubebuilder:object:root=true
type TkaRequestList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	// items are the requests.
	Items []TkaRequest `json:"items"`
}

// TkaRequestSpec is who asked for what, from where and why.
//
// +kubebuilder:validation:XValidation:rule="duration(self.period) > duration('0s') && duration(self.period) <= duration('8760h')",message="period must be more than 0 and at most 8760h"
// +kubebuilder:validation:XValidation:rule="self.pendingUntil > self.askedAt && self.pendingUntil - self.askedAt <= duration('24h')",message="pendingUntil must be at most 24h after askedAt"
// +kubebuilder:validation:XValidation:rule="!has(self.breakGlass) || !self.breakGlass || self.approvals == 0",message="break-glass needs no approvals"
type TkaRequestSpec struct {
	// cluster is the cluster that the request is for. An approval cannot move to another one.
	// +required
	Cluster RequestCluster `json:"cluster"`

	// requester is the person or the tagged node that asks, as the tailnet of this cluster identified it.
	// +required
	Requester Requester `json:"requester"`

	// rule is the name of the rule that allowed to ask, if it has one. It is for display only.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Rule string `json:"rule,omitempty"`

	// bind are the roles that the request is for.
	// +required
	// +listType=map
	// +listMapKey=role
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	Bind []SigninBind `json:"bind"`

	// period is how long the access lasts from its use, as a Go duration such as 1h.
	// +required
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`
	Period metav1.Duration `json:"period"`

	// approvals is how many other people must approve: the most of what the rule and the floor said when the person asked.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=5
	Approvals int32 `json:"approvals"`

	// reason is why, in the requester's own words: one line.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=500
	// +kubebuilder:validation:Pattern=`^[^\x00-\x1f\x7f]*$`
	Reason string `json:"reason"`

	// breakGlass says that the settings, and not an approval, allow the access. Another person must review it.
	// +optional
	BreakGlass bool `json:"breakGlass,omitempty"`

	// record are the streams through the access proxy that must be recorded: exec, attach and portForward.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=3
	// +kubebuilder:validation:items:Enum=exec;attach;portForward
	Record []string `json:"record,omitempty"`

	// askedAt is the time of the request by the access server's clock. metadata.creationTimestamp is the one that counts.
	// +required
	AskedAt metav1.Time `json:"askedAt"`

	// pendingUntil is when a request that lacks approvals expires.
	// +required
	PendingUntil metav1.Time `json:"pendingUntil"`
}

// RequestCluster is a cluster.
type RequestCluster struct {
	// name is the name of the cluster in the settings.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// id is the UID of the namespace kube-system.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	ID string `json:"id"`
}

// Requester is who asks.
type Requester struct {
	SigninUser `json:",inline"`

	// tags are the tags of a tagged node.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=50
	// +kubebuilder:validation:items:MaxLength=253
	Tags []string `json:"tags,omitempty"`

	// device is the tailnet node that the request belongs to. Only this node can use it.
	// +required
	Device SigninDevice `json:"device"`
}

// TkaRequestStatus has the decisions about a request and its use. Only the access server writes it, and fields are only added.
//
// +kubebuilder:validation:XValidation:rule="!has(self.approvals) || self.approvals.all(a, self.approvals.exists_one(b, a.login.lowerAscii() == b.login.lowerAscii() || a.userID == b.userID))",message="each person approves once, by login and by user ID"
// +kubebuilder:validation:XValidation:rule="!has(self.use) || !has(self.decision)",message="a request is used or decided, not both"
// +kubebuilder:validation:XValidation:rule="!has(self.revoked) || has(self.use)",message="only a used request is revoked"
type TkaRequestStatus struct {
	// approvals are the approvals, one of each person.
	// +optional
	// +listType=map
	// +listMapKey=login
	// +kubebuilder:validation:MaxItems=20
	Approvals []RequestApproval `json:"approvals,omitempty"`

	// decision is why the request ended before its use.
	// +optional
	Decision *RequestDecision `json:"decision,omitempty"`

	// revoked is who ended the access after its use.
	// +optional
	Revoked *RequestAct `json:"revoked,omitempty"`

	// use is the one use of the request.
	// +optional
	Use *RequestUse `json:"use,omitempty"`

	// reviewed is who has looked at a break-glass use.
	// +optional
	Reviewed *RequestAct `json:"reviewed,omitempty"`

	// usableUntil is when a request with enough approvals expires. The patch that adds the last needed approval sets it.
	// +optional
	UsableUntil *metav1.Time `json:"usableUntil,omitempty"`

	// notified are the notifications that were sent. No decision depends on them.
	// +optional
	// +listType=map
	// +listMapKey=step
	// +listMapKey=target
	// +kubebuilder:validation:MaxItems=64
	Notified []RequestNotice `json:"notified,omitempty"`
}

// RequestPerson is a person who decides, as the tailnet of this cluster identified them.
type RequestPerson struct {
	// login is the full login name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=254
	Login string `json:"login"`

	// userID is the ID of the user in the tailnet.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	UserID string `json:"userID"`

	// device is the stable ID of the node that the person used.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Device string `json:"device"`
}

// RequestApproval is the approval of one person.
type RequestApproval struct {
	RequestPerson `json:",inline"`

	// digest identifies what the person saw: the cluster, the UID of the request and its spec. SHA-256, hexadecimal.
	// +required
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{64}$`
	Digest string `json:"digest"`

	// at is when the person approved.
	// +required
	At metav1.Time `json:"at"`

	// comment is a remark for the requester.
	// +optional
	// +kubebuilder:validation:MaxLength=500
	// +kubebuilder:validation:Pattern=`^[^\x00-\x1f\x7f]*$`
	Comment string `json:"comment,omitempty"`

	// period is how long the access may last by this approval, at most the period of the request. The shortest one counts. Absent: that of the request.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`
	Period *metav1.Duration `json:"period,omitempty"`
}

// RequestAct is what one person did.
type RequestAct struct {
	RequestPerson `json:",inline"`

	// at is when.
	// +required
	At metav1.Time `json:"at"`

	// reason is why, or a remark.
	// +optional
	// +kubebuilder:validation:MaxLength=500
	// +kubebuilder:validation:Pattern=`^[^\x00-\x1f\x7f]*$`
	Reason string `json:"reason,omitempty"`
}

// RequestDecision is why a request ended before its use.
type RequestDecision struct {
	RequestAct `json:",inline"`

	// is says what happened: an approver denied the request, or the requester cancelled it.
	// +required
	// +kubebuilder:validation:Enum=Denied;Cancelled
	Is string `json:"is"`
}

// RequestUse is the one use of a request.
type RequestUse struct {
	// at is the creationTimestamp of the sign-in: the access begins here.
	// +required
	At metav1.Time `json:"at"`

	// signin is the name of the TkaSignin.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Signin string `json:"signin"`

	// signinUID is the UID of the TkaSignin.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	SigninUID string `json:"signinUID"`

	// device is the stable ID of the node that used the request.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Device string `json:"device"`

	// period is the shortest of the request's and the counted approvals' periods.
	// +required
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`
	Period metav1.Duration `json:"period"`
}

// RequestNotice is a notification that was sent, or given up.
type RequestNotice struct {
	// step is what it was about, such as asked or outcome.
	// +required
	// +kubebuilder:validation:MaxLength=32
	Step string `json:"step"`

	// target is the name of the target in the settings.
	// +required
	// +kubebuilder:validation:MaxLength=63
	Target string `json:"target"`

	// at is when it was sent, or last tried.
	// +required
	At metav1.Time `json:"at"`

	// tries is how often it was tried.
	// +optional
	Tries int32 `json:"tries,omitempty"`

	// gaveUp says that it was not sent.
	// +optional
	GaveUp bool `json:"gaveUp,omitempty"`
}

// SigninRequest names the access request that a sign-in uses.
type SigninRequest struct {
	// name is the name of the TkaRequest in the same namespace. It is the session too.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`

	// uid is the UID of the TkaRequest.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	UID string `json:"uid"`

	// digest identifies what was approved. SHA-256, hexadecimal.
	// +required
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{64}$`
	Digest string `json:"digest"`
}
