package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
)

// stateRequestTimeout bounds one request for a state Secret.
const stateRequestTimeout = 30 * time.Second

// A StateSecret contains the persistent state of a tailnet node and, of a relay, the fields that the
// gateway's operator reads. This process must be its only writer. It needs rights on that one Secret.
type StateSecret struct {
	secrets corev1client.SecretInterface
	name    string

	mu   sync.Mutex
	data map[string][]byte
}

// OpenStateSecret reads the Secret, which must exist.
func OpenStateSecret(ctx context.Context, config *rest.Config, namespace, name string) (*StateSecret, error) {
	c, err := corev1client.NewForConfig(Unthrottled(config))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, stateRequestTimeout)
	defer cancel()
	secrets := c.Secrets(namespace)
	s, err := secrets.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("the state Secret %s/%s must exist, and this account needs get, update and patch on it: %w", namespace, name, err)
	}
	st := &StateSecret{secrets: secrets, name: name, data: s.Data}
	if st.data == nil {
		st.data = map[string][]byte{}
	}
	return st, nil
}

// invalidKeyCharacters matches the characters that are not valid in a Secret key.
var invalidKeyCharacters = regexp.MustCompile(`[^-._a-zA-Z0-9]`)

// ReadState returns a key of the node's state, or nil if it does not exist.
func (s *StateSecret) ReadState(key string) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.data[invalidKeyCharacters.ReplaceAllString(key, "_")])
}

// WriteState writes a key of the node's state. A nil value removes it.
func (s *StateSecret) WriteState(key string, value []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), stateRequestTimeout)
	defer cancel()
	return s.write(ctx, map[string][]byte{invalidKeyCharacters.ReplaceAllString(key, "_"): value})
}

// Field returns the value of a field, or "" if it does not exist.
func (s *StateSecret) Field(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.data[name])
}

// Set writes fields. An empty value removes the field. Unchanged fields are not written.
func (s *StateSecret) Set(ctx context.Context, fields map[string]string) error {
	ctx, cancel := context.WithTimeout(ctx, stateRequestTimeout)
	defer cancel()
	data := map[string][]byte{}
	s.mu.Lock()
	for k, v := range fields {
		if string(s.data[k]) == v {
			continue
		}
		if data[k] = nil; v != "" {
			data[k] = []byte(v)
		}
	}
	s.mu.Unlock()
	return s.write(ctx, data)
}

// write patches the Secret and then updates the local copy.
func (s *StateSecret) write(ctx context.Context, data map[string][]byte) error {
	if len(data) == 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"data": data})
	if err != nil {
		return err
	}
	if _, err := s.secrets.Patch(ctx, s.name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("write %s to the state Secret %s: %w", strings.Join(slices.Sorted(maps.Keys(data)), ", "), s.name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, v := range data {
		if v == nil {
			delete(s.data, k)
		} else {
			s.data[k] = v
		}
	}
	return nil
}

// Refresh removes fields from the local copy that are no longer in the Secret, so that Set writes
// them again. The operator removes fields when the device no longer exists.
func (s *StateSecret) Refresh(ctx context.Context, fields ...string) error {
	ctx, cancel := context.WithTimeout(ctx, stateRequestTimeout)
	defer cancel()
	is, err := s.secrets.Get(ctx, s.name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read the state Secret %s again: %w", s.name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range fields {
		if _, exists := is.Data[f]; !exists {
			delete(s.data, f)
		}
	}
	return nil
}

// Complete reports whether the node's state is complete: all of its parts with exactly one
// profile, or no state at all. A process that exits between these writes loses its node.
func (s *StateSecret) Complete() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	parts, profiles := 0, 0
	for k := range s.data {
		switch {
		case k == "_machinekey", k == "_profiles", k == "_current-profile":
			parts++
		case strings.HasPrefix(k, "profile-"):
			profiles++
		}
	}
	return parts == 3 && profiles == 1 || parts <= 1 && profiles == 0
}

// Joined reports whether the node of this state has joined the tailnet.
func (s *StateSecret) Joined() bool { return s.Complete() && len(s.ReadState("_current-profile")) > 0 }
