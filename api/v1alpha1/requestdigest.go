package v1alpha1

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// requestDigestVersion is the first byte of the digest's input. Another set of fields needs another version.
const requestDigestVersion = 1

// RequestDigest returns what an approval is bound to: the SHA-256, in lower-case hexadecimal, of the cluster in which
// the object is, the object's UID and its spec. clusterID is the UID of the namespace kube-system where the caller of this
// function runs, so an object that was copied to another cluster has another digest.
//
// Its input is the version byte, then each field as its name and its value, each behind its length in bytes as a
// 64-bit big-endian number. It does not depend on JSON, so a field that a later definition adds voids no approval. An
// absent value equals an empty one, times have a resolution of one second, and the order of lists without an order
// does not matter.
func RequestDigest(clusterID, uid string, spec TkaRequestSpec) string {
	d := digester{sha256.New()}
	d.Write([]byte{requestDigestVersion})
	d.field("clusterID", clusterID)
	d.field("uid", uid)
	d.field("cluster.name", spec.Cluster.Name)
	d.field("cluster.id", spec.Cluster.ID)
	r := spec.Requester
	d.field("requester.login", r.Login)
	d.field("requester.userID", r.ID)
	d.field("requester.displayName", r.DisplayName)
	d.set("requester.tags", r.Tags)
	d.field("requester.device.id", r.Device.ID)
	d.field("requester.device.name", r.Device.Name)
	d.field("requester.device.tailnet", r.Device.Tailnet)
	d.field("rule", spec.Rule)
	d.field("bind", strconv.Itoa(len(spec.Bind)))
	binds := slices.Clone(spec.Bind)
	slices.SortFunc(binds, func(a, b SigninBind) int { return cmp.Compare(a.Role, b.Role) })
	for _, b := range binds {
		d.field("bind.role", b.Role)
		d.set("bind.namespaces", b.Namespaces)
		d.field("bind.namespaceSelector", b.NamespaceSelector)
	}
	d.field("period", strconv.FormatInt(int64(spec.Period.Duration), 10))
	d.field("approvals", strconv.FormatInt(int64(spec.Approvals), 10))
	d.field("reason", spec.Reason)
	d.field("breakGlass", strconv.FormatBool(spec.BreakGlass))
	d.set("record", spec.Record)
	d.time("askedAt", spec.AskedAt)
	d.time("pendingUntil", spec.PendingUntil)
	return hex.EncodeToString(d.Sum(nil))
}

type digester struct{ hash.Hash }

func (d digester) text(s string) {
	d.Write(binary.BigEndian.AppendUint64(nil, uint64(len(s))))
	d.Write([]byte(s))
}

func (d digester) field(name, value string) {
	d.text(name)
	d.text(value)
}

// set writes the number of members and each member, sorted.
func (d digester) set(name string, members []string) {
	members = slices.Sorted(slices.Values(members))
	d.field(name, strconv.Itoa(len(members)))
	for _, m := range members {
		d.text(m)
	}
}

func (d digester) time(name string, t metav1.Time) {
	d.field(name, t.UTC().Truncate(time.Second).Format(time.RFC3339))
}
