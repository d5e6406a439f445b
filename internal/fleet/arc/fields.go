package arc

import (
	"math"
	"strconv"
	"strings"
	"unicode"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/tailplane/tailplane/internal/fleet"
)

// Unlimited is ARC's value for no maximum.
const Unlimited = math.MaxInt32

func keyOf(u *unstructured.Unstructured) fleet.Key {
	return fleet.Key{Namespace: u.GetNamespace(), Name: u.GetName()}
}

func stringField(u *unstructured.Unstructured, path ...string) string {
	s, _, _ := unstructured.NestedString(u.Object, path...)
	return s
}

func boolField(u *unstructured.Unstructured, path ...string) bool {
	b, _, _ := unstructured.NestedBool(u.Object, path...)
	return b
}

// numberField returns a whole number that is not negative, such as a number of runners. It returns (0,
// true, false) if the field is present but not readable.
func numberField(u *unstructured.Unstructured, path ...string) (n int64, exists, readable bool) {
	v, exists, err := unstructured.NestedFieldNoCopy(u.Object, path...)
	if err != nil {
		return 0, true, false
	}
	if !exists || v == nil {
		return 0, false, false
	}
	switch v := v.(type) {
	case int64:
		n = v
	case int:
		n = int64(v)
	case float64:
		if v != math.Trunc(v) || math.Abs(v) > 1<<53 {
			return 0, true, false
		}
		n = int64(v)
	default:
		return 0, true, false
	}
	if n < 0 {
		return 0, true, false
	}
	return n, true, true
}

// countField returns a number; 0 if the field is absent or not readable.
func countField(u *unstructured.Unstructured, path ...string) int64 {
	n, _, _ := numberField(u, path...)
	return n
}

// parseID parses an ID from GitHub; 0 if it is not valid. GitHub's IDs are positive.
func parseID(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n <= 0 {
		return 0
	}
	return n
}

// ownerOfKind returns the owner reference of one of ARC's kinds, if there is one.
func ownerOfKind(refs []metav1.OwnerReference, kind string) (metav1.OwnerReference, bool) {
	for _, r := range refs {
		if r.Kind == kind && strings.HasPrefix(r.APIVersion, apiGroup+"/") {
			return r, true
		}
	}
	return metav1.OwnerReference{}, false
}

// setFromLabels returns the scale set in the labels; empty if there is none.
func setFromLabels(labels map[string]string) fleet.Key {
	k := fleet.Key{Namespace: labels[setNamespaceLabel], Name: labels[setNameLabel]}
	if k.Namespace == "" || k.Name == "" {
		return fleet.Key{}
	}
	return k
}

// maxSanitized is the maximum length, in bytes, of a foreign text in our messages.
const maxSanitized = 300

// sanitize makes a foreign text safe for a sentence: one line, printable and short.
func sanitize(s string) string {
	clean := strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, ""))
	clean = strings.Join(strings.Fields(clean), " ")
	if len(clean) > maxSanitized {
		clean = strings.ToValidUTF8(clean[:maxSanitized], "") + "…"
	}
	return clean
}
