// Package relaykube is a relay's side of Kubernetes: the Secret that keeps its
// node, the Secret that brings an auth key, and the ConfigMap of its group. It
// keeps law 6: each is got by name, with rights on that name and no list.
package relaykube

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
)

// Fields of the state Secret, beside the node's own state.
const (
	DeviceID    = "device_id"   // the node's stable id
	DeviceFQDN  = "device_fqdn" // with its final dot
	DeviceIPs   = "device_ips"  // a JSON list
	PodUID      = "pod_uid"
	CapVersion  = "tailscale_capver"
	Reissue     = "reissue_authkey" // the id of the key that did not let the node in
	NoKey       = "no-authkey"      // the value of Reissue when there was none
	authKeyData = "authkey"
	// AuthKeyID is the annotation with a key's id, which may be told.
	AuthKeyID = "gateway.tailscale.com/authkey-id"
)

// Fields of a Secret of the type kubernetes.io/tls.
const (
	tlsCertKey    = "tls.crt"
	tlsPrivateKey = "tls.key"
)

const (
	requestTime = 30 * time.Second // of one question to the API server
	startTime   = 30 * time.Second
)

// A Client reads and writes the objects of one pod.
type Client struct {
	core      corev1.CoreV1Interface
	namespace string
}

// New returns a client for the namespace of the pod.
func New(config *rest.Config, namespace string) (*Client, error) {
	k, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &Client{k.CoreV1(), namespace}, nil
}

// A State is the state Secret. It keeps what the node must not lose, and what the
// operator wants to know. Its one writer is this process.
type State struct {
	client *Client
	name   string

	mu   sync.Mutex
	data map[string][]byte
}

// Open reads the Secret, which must exist.
func (c *Client) Open(ctx context.Context, name string) (*State, error) {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	s, err := c.core.Secrets(c.namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("the state Secret %s/%s must exist, and this account needs get, update and patch on it: %w", c.namespace, name, err)
	}
	st := &State{client: c, name: name, data: s.Data}
	if st.data == nil {
		st.data = map[string][]byte{}
	}
	return st, nil
}

// unfit are the characters that a key of a Secret cannot have.
var unfit = regexp.MustCompile(`[^-._a-zA-Z0-9]`)

// ReadState returns a key of the node's state, nil if there is none.
func (s *State) ReadState(key string) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.data[unfit.ReplaceAllString(key, "_")])
}

// WriteState writes a key of the node's state; nil removes it.
func (s *State) WriteState(key string, value []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), requestTime)
	defer cancel()
	return s.write(ctx, map[string][]byte{unfit.ReplaceAllString(key, "_"): value})
}

// Field returns what stands in a field, "" if nothing does.
func (s *State) Field(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.data[name])
}

// Set writes fields; "" removes one. It writes nothing that stands there already.
func (s *State) Set(ctx context.Context, fields map[string]string) error {
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

// write patches the Secret, and then what this process knows of it.
func (s *State) write(ctx context.Context, data map[string][]byte) error {
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

// Refresh forgets those of the fields that somebody has taken out of the Secret, so
// that Set writes them again: the operator does so with a device that is gone.
func (s *State) Refresh(ctx context.Context, fields ...string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	is, err := s.client.core.Secrets(s.client.namespace).Get(ctx, s.name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read the state Secret %s again: %w", s.name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range fields {
		if _, there := is.Data[f]; !there {
			delete(s.data, f)
		}
	}
	return nil
}

// Complete reports whether the node's state is whole: all of its parts, with
// exactly one profile, or none. A process that ends in between loses its node.
func (s *State) Complete() bool {
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

// Joined reports whether the state is that of a node that has joined.
func (s *State) Joined() bool { return s.Complete() && len(s.ReadState("_current-profile")) > 0 }

// AuthKey reads the config Secret: a key that lets the node in, which must not be
// told, and its id, which may. There may be none.
func (c *Client) AuthKey(ctx context.Context, name string) (id, key string, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	s, err := c.core.Secrets(c.namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", "", fmt.Errorf("the config Secret %s/%s: %w", c.namespace, name, err)
	}
	return s.Annotations[AuthKeyID], strings.TrimSpace(string(s.Data[authKeyData])), nil
}

// Certificate reads the Secret of a name: its certificate and key in PEM. Both are
// empty if there is none yet.
func (c *Client) Certificate(ctx context.Context, name string) (chain, key []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	s, err := c.core.Secrets(c.namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("the Secret %s/%s: %w", c.namespace, name, err)
	}
	return s.Data[tlsCertKey], s.Data[tlsPrivateKey], nil
}

// SetCertificate writes both into the Secret, which must exist.
func (c *Client) SetCertificate(ctx context.Context, name string, chain, key []byte) error {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	patch, err := json.Marshal(map[string]any{"data": map[string][]byte{tlsCertKey: chain, tlsPrivateKey: key}})
	if err != nil {
		return err
	}
	_, err = c.core.Secrets(c.namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}
