// Package volume creates the content of volumes and the environment of a pod on podnode: ConfigMaps, Secrets, fields
// of the pod, and tokens bound to it. It fails closed: a reference that cannot be resolved is an error that names it,
// unless the pod marks it as optional.
package volume

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Reader reads the data for one pod. It is safe for concurrent use.
type Reader struct {
	Client        kubernetes.Interface
	Pod           *corev1.Pod
	PodIP, HostIP string
	Now           func() time.Time
	mu            sync.Mutex
	tokens        map[string]token
}

type token struct {
	value string
	renew time.Time
}

// Files returns the current content of a volume. For a volume without content of its own (an emptyDir) it returns
// nil.
func (r *Reader) Files(ctx context.Context, v corev1.Volume) (map[string]File, error) {
	files, err := r.files(ctx, v)
	if err != nil {
		return nil, fmt.Errorf("volume %s: %w", v.Name, err)
	}
	return files, nil
}

func (r *Reader) files(ctx context.Context, v corev1.Volume) (map[string]File, error) {
	switch {
	case v.ConfigMap != nil:
		s := v.ConfigMap
		return r.configMap(ctx, s.Name, s.Items, s.DefaultMode, s.Optional)
	case v.Secret != nil:
		s := v.Secret
		return r.secret(ctx, s.SecretName, s.Items, s.DefaultMode, s.Optional)
	case v.DownwardAPI != nil:
		return r.downward(v.DownwardAPI.Items, v.DownwardAPI.DefaultMode)
	case v.Projected != nil:
		all := map[string]File{}
		for _, s := range v.Projected.Sources {
			files, err := r.projection(ctx, s, v.Projected.DefaultMode)
			if err != nil {
				return nil, err
			}
			maps.Copy(all, files)
		}
		return all, nil
	}
	return nil, nil
}

func (r *Reader) projection(ctx context.Context, s corev1.VolumeProjection, standard *int32) (map[string]File, error) {
	switch {
	case s.ConfigMap != nil:
		return r.configMap(ctx, s.ConfigMap.Name, s.ConfigMap.Items, standard, s.ConfigMap.Optional)
	case s.Secret != nil:
		return r.secret(ctx, s.Secret.Name, s.Secret.Items, standard, s.Secret.Optional)
	case s.DownwardAPI != nil:
		return r.downward(s.DownwardAPI.Items, standard)
	case s.ServiceAccountToken != nil:
		t, err := r.token(ctx, *s.ServiceAccountToken)
		if err != nil {
			return nil, err
		}
		return map[string]File{s.ServiceAccountToken.Path: {Data: []byte(t), Mode: mode(nil, standard)}}, nil
	}
	return nil, fmt.Errorf("a source of an unknown kind")
}

// token returns a token of the pod's ServiceAccount that is bound to the pod. It renews the token after four fifths
// of its lifetime, as the kubelet does.
func (r *Reader) token(ctx context.Context, s corev1.ServiceAccountTokenProjection) (string, error) {
	key := s.Audience + "\x00" + s.Path
	r.mu.Lock()
	t, ok := r.tokens[key]
	r.mu.Unlock()
	now := r.Now()
	if ok && now.Before(t.renew) {
		return t.value, nil
	}
	req := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: s.ExpirationSeconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: r.Pod.Name, UID: r.Pod.UID},
	}}
	if s.Audience != "" {
		req.Spec.Audiences = []string{s.Audience}
	}
	got, err := r.Client.CoreV1().ServiceAccounts(r.Pod.Namespace).CreateToken(ctx, r.Pod.Spec.ServiceAccountName, req, metav1.CreateOptions{})
	if err != nil {
		if ok && !apierrors.IsNotFound(err) {
			return t.value, nil // the last valid token, which has a fifth of its lifetime left
		}
		return "", fmt.Errorf("token of ServiceAccount %s: %w", r.Pod.Spec.ServiceAccountName, err)
	}
	t = token{got.Status.Token, now.Add(got.Status.ExpirationTimestamp.Sub(now) * 4 / 5)}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tokens == nil {
		r.tokens = map[string]token{}
	}
	r.tokens[key] = t
	return t.value, nil
}

// getConfigMap returns nil if an optional ConfigMap does not exist.
func (r *Reader) getConfigMap(ctx context.Context, name string, optional *bool) (*corev1.ConfigMap, error) {
	c, err := r.Client.CoreV1().ConfigMaps(r.Pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) && optional != nil && *optional {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the ConfigMap %s: %w", name, err)
	}
	return c, nil
}

func (r *Reader) getSecret(ctx context.Context, name string, optional *bool) (*corev1.Secret, error) {
	s, err := r.Client.CoreV1().Secrets(r.Pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) && optional != nil && *optional {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the Secret %s: %w", name, err)
	}
	return s, nil
}

func (r *Reader) configMap(ctx context.Context, name string, items []corev1.KeyToPath, standard *int32, optional *bool) (map[string]File, error) {
	c, err := r.getConfigMap(ctx, name, optional)
	if err != nil || c == nil {
		return map[string]File{}, err
	}
	data := maps.Clone(c.BinaryData)
	if data == nil {
		data = map[string][]byte{}
	}
	for k, v := range c.Data {
		data[k] = []byte(v)
	}
	return choose("ConfigMap "+name, data, items, standard, optional)
}

func (r *Reader) secret(ctx context.Context, name string, items []corev1.KeyToPath, standard *int32, optional *bool) (map[string]File, error) {
	s, err := r.getSecret(ctx, name, optional)
	if err != nil || s == nil {
		return map[string]File{}, err
	}
	return choose("Secret "+name, s.Data, items, standard, optional)
}

func choose(what string, data map[string][]byte, items []corev1.KeyToPath, standard *int32, optional *bool) (map[string]File, error) {
	files := map[string]File{}
	if items == nil {
		for k, v := range data {
			files[k] = File{Data: v, Mode: mode(nil, standard)}
		}
		return files, nil
	}
	for _, i := range items {
		v, ok := data[i.Key]
		if !ok && (optional == nil || !*optional) {
			return nil, fmt.Errorf("%s has no key %s", what, i.Key)
		}
		if ok {
			files[i.Path] = File{Data: v, Mode: mode(i.Mode, standard)}
		}
	}
	return files, nil
}

func (r *Reader) downward(items []corev1.DownwardAPIVolumeFile, standard *int32) (map[string]File, error) {
	files := map[string]File{}
	for _, i := range items {
		if i.FieldRef == nil {
			return nil, fmt.Errorf("%s has no fieldRef", i.Path)
		}
		v, err := r.Field(i.FieldRef.FieldPath)
		if err != nil {
			return nil, err
		}
		files[i.Path] = File{Data: []byte(v), Mode: mode(i.Mode, standard)}
	}
	return files, nil
}

func mode(own, standard *int32) fs.FileMode {
	for _, m := range []*int32{own, standard} {
		if m != nil {
			return fs.FileMode(*m) & fs.ModePerm
		}
	}
	return 0o644
}

// Field returns the value of a pod field by its path.
func (r *Reader) Field(path string) (string, error) {
	p := r.Pod
	switch path {
	case "metadata.name":
		return p.Name, nil
	case "metadata.namespace":
		return p.Namespace, nil
	case "metadata.uid":
		return string(p.UID), nil
	case "metadata.labels":
		return pairs(p.Labels), nil
	case "metadata.annotations":
		return pairs(p.Annotations), nil
	case "spec.nodeName":
		return p.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return p.Spec.ServiceAccountName, nil
	case "status.hostIP", "status.hostIPs":
		return r.HostIP, nil
	case "status.podIP", "status.podIPs":
		return r.PodIP, nil
	}
	for prefix, m := range map[string]map[string]string{"metadata.labels['": p.Labels, "metadata.annotations['": p.Annotations} {
		if key, ok := strings.CutPrefix(path, prefix); ok {
			if key, ok = strings.CutSuffix(key, "']"); ok {
				return m[key], nil
			}
		}
	}
	return "", fmt.Errorf("field %s is unknown", path)
}

// pairs formats labels as the kubelet does.
func pairs(m map[string]string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(m)) {
		fmt.Fprintf(&b, "%s=%q\n", k, m[k])
	}
	return strings.TrimSuffix(b.String(), "\n")
}
