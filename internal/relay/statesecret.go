package relay

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
	"k8s.io/client-go/kubernetes"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/tailplane/tailplane/internal/relay/config"
)

// A relay's Kubernetes client uses the Secret with the node's state, the Secret with an auth key, and
// the ConfigMap of the group. It follows law 6: it gets each object by name, with rights on that
// name only and no list.

// Fields of a Secret of type kubernetes.io/tls.
const (
	tlsCertKey    = "tls.crt"
	tlsPrivateKey = "tls.key"
)

const (
	requestTime = 30 * time.Second // for one request to the API server
	startTime   = 30 * time.Second
)

// A KubeClient reads and writes the Kubernetes objects of one pod.
type KubeClient struct {
	core      corev1.CoreV1Interface
	namespace string
}

// NewKubeClient returns a client for the namespace of the pod.
func NewKubeClient(config *rest.Config, namespace string) (*KubeClient, error) {
	k, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &KubeClient{k.CoreV1(), namespace}, nil
}

// A StateSecret is the state Secret. It contains the node's persistent state and the fields that the
// operator reads. This process must be its only writer.
type StateSecret struct {
	client *KubeClient
	name   string

	mu   sync.Mutex
	data map[string][]byte
}

// Open reads the Secret, which must exist.
func (c *KubeClient) Open(ctx context.Context, name string) (*StateSecret, error) {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	s, err := c.core.Secrets(c.namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("the state Secret %s/%s must exist, and this account needs get, update and patch on it: %w", c.namespace, name, err)
	}
	st := &StateSecret{client: c, name: name, data: s.Data}
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
	ctx, cancel := context.WithTimeout(context.Background(), requestTime)
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
	ctx, cancel := context.WithTimeout(ctx, requestTime)
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
	if _, err := s.client.core.Secrets(s.client.namespace).Patch(ctx, s.name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
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
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	is, err := s.client.core.Secrets(s.client.namespace).Get(ctx, s.name, metav1.GetOptions{})
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

// AuthKey reads the config Secret: an auth key, which is secret, and its ID, which is not. Both
// can be empty.
func (c *KubeClient) AuthKey(ctx context.Context, name string) (id, key string, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	s, err := c.core.Secrets(c.namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", "", fmt.Errorf("the config Secret %s/%s: %w", c.namespace, name, err)
	}
	return s.Annotations[config.AuthKeyID], strings.TrimSpace(string(s.Data[config.AuthKeyField])), nil
}

// Certificate reads the certificate and key of a name from its Secret, in PEM. Both are empty if
// no certificate was issued yet.
func (c *KubeClient) Certificate(ctx context.Context, name string) (chain, key []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	s, err := c.core.Secrets(c.namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("the Secret %s/%s: %w", c.namespace, name, err)
	}
	return s.Data[tlsCertKey], s.Data[tlsPrivateKey], nil
}

// SetCertificate writes the certificate and key to the Secret, which must exist.
func (c *KubeClient) SetCertificate(ctx context.Context, name string, chain, key []byte) error {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	patch, err := json.Marshal(map[string]any{"data": map[string][]byte{tlsCertKey: chain, tlsPrivateKey: key}})
	if err != nil {
		return err
	}
	_, err = c.core.Secrets(c.namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}
