package kube

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Data of a KeySecret.
const (
	seedData         = "ed25519"  // the seed, 32 bytes
	previousSeedData = "previous" // the seed of the previous key, while clients still pin that key
)

// PublicKeyAnnotation holds the public key of a generated key, for people who must know it.
const PublicKeyAnnotation = "tailplane.dev/public-key"

// A KeySecret is a Secret with the seed of an Ed25519 key. It holds no value that could be printed.
// It needs get and update on that one Secret.
type KeySecret[K any] struct {
	client     client.Client
	key        client.ObjectKey
	parse      func(seed []byte) (K, error)
	public     func(K) string
	lostAdvice string // advice for an invalid Secret without a backup
}

// NewKeySecret returns the Secret of that name. parse creates a key from the seed, and public
// returns the text of its public key. lost says what follows if the key must be generated again. It
// makes no request yet.
func NewKeySecret[K any](config *rest.Config, namespace, name, lost string, parse func(seed []byte) (K, error), public func(K) string) (*KeySecret[K], error) {
	c, err := newKeyClient(config)
	if err != nil {
		return nil, err
	}
	return &KeySecret[K]{c, client.ObjectKey{Namespace: namespace, Name: name}, parse, public, lost}, nil
}

// newKeyClient returns a client that knows only the kinds of this file.
func newKeyClient(config *rest.Config) (client.Client, error) {
	mapper := Mapper([]schema.GroupVersionKind{corev1.SchemeGroupVersion.WithKind("Secret")},
		[]schema.GroupVersionKind{corev1.SchemeGroupVersion.WithKind("Namespace")})
	return client.New(Unthrottled(config), client.Options{Mapper: mapper})
}

// Load reads the key, and generates it if the Secret has none. If several servers find the Secret
// empty, the first write wins and the other servers read that key. Load never overwrites data that
// is not a key. Its errors never contain any part of the key.
func (k *KeySecret[K]) Load(ctx context.Context) (none K, err error) {
	for range writeTries {
		s := new(corev1.Secret)
		if err := k.client.Get(ctx, k.key, s); err != nil {
			return none, ExplainManifestObject("read", "Secret", k.key, err)
		}
		if seed, ok := s.Data[seedData]; ok {
			key, err := k.parse(seed)
			if err != nil {
				return none, fmt.Errorf("the Secret %s, data %s: %w; if there is no copy of the right key, remove the data and %s", k.key, seedData, err, k.lostAdvice)
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
		s.Data[seedData] = seed
		metav1.SetMetaDataAnnotation(&s.ObjectMeta, PublicKeyAnnotation, k.public(key))
		if err = k.client.Update(ctx, s); err == nil { // fails if the Secret changed since it was read
			return key, nil
		}
		if !apierrors.IsConflict(err) {
			return none, ExplainManifestObject("write", "Secret", k.key, err)
		}
	}
	return none, fmt.Errorf("other clients change the Secret %s continually", k.key)
}

// Previous reads the key that an administrator has replaced, if the Secret still has it. That key
// vouches for the new one.
func (k *KeySecret[K]) Previous(ctx context.Context) (none K, ok bool, err error) {
	s := new(corev1.Secret)
	if err := k.client.Get(ctx, k.key, s); err != nil {
		return none, false, ExplainManifestObject("read", "Secret", k.key, err)
	}
	seed, ok := s.Data[previousSeedData]
	if !ok {
		return none, false, nil
	}
	key, err := k.parse(seed)
	if err != nil {
		return none, false, fmt.Errorf("the Secret %s, data %s: %w", k.key, previousSeedData, err)
	}
	return key, true, nil
}

const writeTries = 5

// ErrForbidden means that this account lacks the permission for the request.
var ErrForbidden = errors.New("this account lacks the permission")

// ClusterUID returns the UID of the namespace kube-system, which serves as the identity of the
// cluster. It returns ErrForbidden if the account may not read the namespace.
func ClusterUID(ctx context.Context, config *rest.Config) (string, error) {
	c, err := newKeyClient(config)
	if err != nil {
		return "", err
	}
	n := new(corev1.Namespace)
	err = c.Get(ctx, client.ObjectKey{Name: "kube-system"}, n)
	if apierrors.IsForbidden(err) {
		err = ErrForbidden
	}
	if err != nil {
		return "", fmt.Errorf("namespace kube-system: %w", err)
	}
	return string(n.UID), nil
}
