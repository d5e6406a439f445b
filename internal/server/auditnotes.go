package server

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"

	"github.com/tailplane/tailplane/internal/audit"
	gossipcontroller "github.com/tailplane/tailplane/internal/gossip/controller"
	"github.com/tailplane/tailplane/internal/settings"
)

// noteAnnotation is the beginning of the annotations that hold the last signed line of an audit log; the log's ID follows.
const noteAnnotation = "tailplane.dev/audit-log-"

// maxNotes bounds the annotations of one Lease. The oldest are dropped.
const maxNotes = 12

// An auditNote is the last signed line of an audit log, as its writer noted it on the Lease of its role.
type auditNote struct {
	audit.SignedHead
	Writer string    `json:"writer"` // host name of the process, in a pod the pod's name; a colon; the path of the file
	At     time.Time `json:"at"`
}

// auditLease returns the name of the Lease of a role.
func auditLease(role settings.Role) string {
	switch role {
	case settings.OperatorRole:
		return operatorLease
	case settings.PlaneRole:
		return PlaneLease
	case settings.ProxyRole:
		return proxyLease
	}
	return gossipcontroller.LeaseName
}

// operatorLease is the Lease of the operator's leader election. proxyLease has notes only: every replica of the access proxy
// works.
const (
	operatorLease = "tailplane-operator"
	proxyLease    = "tailplane-proxy"
)

// auditNotes reads and writes the notes on the Leases of one namespace.
type auditNotes struct {
	leases coordinationclient.LeaseInterface
}

func newAuditNotes(config *rest.Config, namespace string) (auditNotes, error) {
	c, err := coordinationclient.NewForConfig(config)
	if err != nil {
		return auditNotes{}, err
	}
	return auditNotes{c.Leases(namespace)}, nil
}

// list returns the notes on a Lease, the latest first. A Lease that does not exist has none.
func (n auditNotes) list(ctx context.Context, lease string) ([]auditNote, error) {
	l, err := n.leases.Get(ctx, lease, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return notesOf(l.Annotations), nil
}

// notesOf returns the notes in annotations, the latest first. It skips invalid ones.
func notesOf(annotations map[string]string) (notes []auditNote) {
	for key, text := range annotations {
		id, ok := strings.CutPrefix(key, noteAnnotation)
		var note auditNote
		if !ok || json.Unmarshal([]byte(text), &note) != nil || note.Last.Log != id || note.Last.IsZero() {
			continue
		}
		notes = append(notes, note)
	}
	slices.SortFunc(notes, func(a, b auditNote) int { return cmp.Or(b.At.Compare(a.At), strings.Compare(a.Last.Log, b.Last.Log)) })
	return notes
}

// withNote adds a note to annotations, unless they have a note about a later line of the same log. It drops the oldest notes above the limit.
func withNote(annotations map[string]string, note auditNote) (next map[string]string, changed bool) {
	text, err := json.Marshal(note)
	if err != nil { // a time outside the years 0 to 9999
		return annotations, false
	}
	notes := notesOf(annotations)
	later := func(have auditNote) bool {
		return have.Last.Log == note.Last.Log && have.Last.Head.Seq >= note.Last.Head.Seq
	}
	if slices.ContainsFunc(notes, later) {
		return annotations, false
	}
	next = maps.Clone(annotations)
	if next == nil {
		next = map[string]string{}
	}
	notes = slices.DeleteFunc(notes, func(have auditNote) bool { return have.Last.Log == note.Last.Log })
	for _, old := range notes[min(len(notes), maxNotes-1):] {
		delete(next, noteAnnotation+old.Last.Log)
	}
	next[noteAnnotation+note.Last.Log] = string(text)
	return next, true
}

// noteTries bounds how often set retries after a conflict with the leader election.
const noteTries = 5

// set writes a note on a Lease. A note about a later line of the same log stays. If the Lease does not exist yet, set does nothing: the next
// call follows.
func (n auditNotes) set(ctx context.Context, lease string, note auditNote) error {
	for range noteTries {
		l, err := n.leases.Get(ctx, lease, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		var changed bool
		if l.Annotations, changed = withNote(l.Annotations, note); !changed {
			return nil
		}
		_, err = n.leases.Update(ctx, l, metav1.UpdateOptions{})
		if !apierrors.IsConflict(err) {
			return err
		}
	}
	return nil // the next call follows
}
