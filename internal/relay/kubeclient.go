package relay

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/tailplane/tailplane/internal/relay/config"
)

// A relay's Kubernetes client uses the Secret with an auth key, the Secrets with certificates and the
// ConfigMap of the group. It follows law 6: it gets each object by name, with rights on that
// name only and no list.

// Fields of a Secret of type kubernetes.io/tls.
const (
	tlsCertKey    = "tls.crt"
	tlsPrivateKey = "tls.key"
)

const requestTime = 30 * time.Second // for one request to the API server

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
