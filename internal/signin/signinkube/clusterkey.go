package signinkube

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/kube"
)

// Where the cluster's key is kept.
const (
	ClusterKeySecret = "tailplane-cluster-key"
	clusterKeyData   = "ed25519"  // the seed, 32 bytes
	previousKeyData  = "previous" // that of the key before, while others still know that one
)

// PublicKeyAnnotation is where whoever makes a key says its public half, for
// people who are to know it.
const PublicKeyAnnotation = "tailplane.dev/public-key"

// A KeySecret is a Secret that holds the seed of an Ed25519 key, and nothing
// that could be printed. It needs get and update on that one Secret.
type KeySecret[K any] struct {
	client client.Client
	key    client.ObjectKey
	parse  func(seed []byte) (K, error)
	public func(K) string
	lost   string // what to do when there is no copy of the right key
}

// A ClusterKey is the Secret that all access servers of a cluster share.
type ClusterKey = KeySecret[door.Key]

// NewClusterKey returns the Secret of that name in namespace. It asks nothing yet.
func NewClusterKey(config *rest.Config, namespace string) (*ClusterKey, error) {
	return NewKeySecret(config, namespace, ClusterKeySecret, "have everybody pin the new one", door.NewKey,
		func(k door.Key) string { return k.Public().String() })
}

// NewKeySecret returns the Secret of that name, whose seed parse makes a key of.
// Public is the text of its public half; lost says what follows when the key has
// to be made anew. It asks nothing yet.
func NewKeySecret[K any](config *rest.Config, namespace, name, lost string, parse func(seed []byte) (K, error), public func(K) string) (*KeySecret[K], error) {
	c, err := narrowClient(config)
	if err != nil {
		return nil, err
	}
	return &KeySecret[K]{c, client.ObjectKey{Namespace: namespace, Name: name}, parse, public, lost}, nil
}

// narrowClient knows just the kinds of this file.
func narrowClient(config *rest.Config) (client.Client, error) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	mapper := kube.Mapper([]schema.GroupVersionKind{corev1.SchemeGroupVersion.WithKind("Secret")},
		[]schema.GroupVersionKind{corev1.SchemeGroupVersion.WithKind("Namespace")})
	return client.New(kube.Unthrottled(config), client.Options{Scheme: scheme, Mapper: mapper})
}

// Load reads the key, and makes it when the Secret holds none: of several
// servers that find it empty the first one to write wins, and the others read
// what it wrote. A Secret that holds anything but a key is never overwritten.
// No error of it shows any of the key.
func (k *KeySecret[K]) Load(ctx context.Context) (none K, err error) {
	for range writeTries {
		s := new(corev1.Secret)
		if err := k.client.Get(ctx, k.key, s); err != nil {
			return none, kube.ExplainGiven("read", "Secret", k.key, err)
		}
		if seed, ok := s.Data[clusterKeyData]; ok {
			key, err := k.parse(seed)
			if err != nil {
				return none, fmt.Errorf("the Secret %s, data %s: %w; if there is no copy of the right key, remove the data and %s", k.key, clusterKeyData, err, k.lost)
			}
			return key, nil
		}
		seed := make([]byte, 32)
		rand.Read(seed) // never fails
		key, err := k.parse(seed)
		if err != nil {
			return none, err
		}
		if s.Data == nil {
			s.Data = map[string][]byte{}
		}
		s.Data[clusterKeyData] = seed
		if s.Annotations == nil {
			s.Annotations = map[string]string{}
		}
		s.Annotations[PublicKeyAnnotation] = k.public(key)
		if err = k.client.Update(ctx, s); err == nil { // of the version that was read
			return key, nil
		}
		if !apierrors.IsConflict(err) {
			return none, kube.ExplainGiven("write", "Secret", k.key, err)
		}
	}
	return none, fmt.Errorf("the Secret %s is changed by others all the time", k.key)
}

// Previous reads the key that an administrator has replaced, if the Secret still
// has it: it vouches for the new one.
func (k *KeySecret[K]) Previous(ctx context.Context) (none K, ok bool, err error) {
	s := new(corev1.Secret)
	if err := k.client.Get(ctx, k.key, s); err != nil {
		return none, false, kube.ExplainGiven("read", "Secret", k.key, err)
	}
	seed, ok := s.Data[previousKeyData]
	if !ok {
		return none, false, nil
	}
	key, err := k.parse(seed)
	if err != nil {
		return none, false, fmt.Errorf("the Secret %s, data %s: %w", k.key, previousKeyData, err)
	}
	return key, true, nil
}

const writeTries = 5

// ErrForbidden means that this account lacks the right to ask.
var ErrForbidden = errors.New("this account may not ask")

// ClusterUID returns the UID of the namespace kube-system, which is as old as
// the cluster and known as its identity. ErrForbidden.
func ClusterUID(ctx context.Context, config *rest.Config) (string, error) {
	c, err := narrowClient(config)
	if err != nil {
		return "", err
	}
	n := new(corev1.Namespace)
	switch err := c.Get(ctx, client.ObjectKey{Name: "kube-system"}, n); {
	case apierrors.IsForbidden(err):
		return "", fmt.Errorf("namespace kube-system: %w", ErrForbidden)
	case err != nil:
		return "", fmt.Errorf("namespace kube-system: %w", err)
	}
	return string(n.UID), nil
}
