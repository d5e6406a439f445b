package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/tailplane/tailplane/internal/relay/config"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// A relay's Kubernetes client uses the Secret with an auth key, the Secrets with certificates and the
// ConfigMap of the group. It follows law 6: it gets each object by name, with rights on that
// name only and no list.

const requestTime = 30 * time.Second // for one request to the API server

// A KubeClient reads and writes the Kubernetes objects of one pod.
type KubeClient struct {
	core      corev1client.CoreV1Interface
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
	s, err := c.secret(ctx, name)
	if err != nil {
		return "", "", fmt.Errorf("the config Secret %s/%s: %w", c.namespace, name, err)
	}
	return s.Annotations[config.AuthKeyID], strings.TrimSpace(string(s.Data[config.AuthKeyField])), nil
}

// Certificate reads the certificate and key of a name from its Secret, in PEM. Both are empty if
// no certificate was issued yet.
func (c *KubeClient) Certificate(ctx context.Context, name string) (chain, key []byte, err error) {
	s, err := c.secret(ctx, name)
	if err != nil {
		return nil, nil, fmt.Errorf("the Secret %s/%s: %w", c.namespace, name, err)
	}
	return s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey], nil
}

func (c *KubeClient) secret(ctx context.Context, name string) (*corev1.Secret, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	return c.core.Secrets(c.namespace).Get(ctx, name, metav1.GetOptions{})
}

// SetCertificate writes the certificate and key to the Secret, which must exist.
func (c *KubeClient) SetCertificate(ctx context.Context, name string, chain, key []byte) error {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	patch, err := json.Marshal(map[string]any{"data": map[string][]byte{corev1.TLSCertKey: chain, corev1.TLSPrivateKeyKey: key}})
	if err != nil {
		return err
	}
	_, err = c.core.Secrets(c.namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// Timing of a watch. The API server ends a watch after watchTime, so that the client detects a
// dead connection by then.
const (
	watchTime  = 5 * time.Minute
	retryPause = 2 * time.Second
	mountBytes = 1 << 20
)

// Watch calls each with the data of a ConfigMap, first with the current data and then after each
// change, until ctx ends. While the API server is unreachable, it uses the files mounted at mount,
// which the kubelet updates within minutes. mount can be empty.
func (c *KubeClient) Watch(ctx context.Context, name, mount string, log *slog.Logger, each func(map[string]string)) error {
	for {
		err := c.follow(ctx, name, each)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			log.Warn("cannot watch the group's ConfigMap; trying again", "configMap", name, "err", err)
			if data, merr := readMount(mount); merr == nil {
				each(data)
			} else if mount != "" && !errors.Is(merr, fs.ErrNotExist) {
				log.Warn("cannot read the mounted configuration", "path", mount, "err", merr)
			}
		}
		if retry.Sleep(ctx, retryPause) != nil {
			return nil
		}
	}
}

// follow reads the ConfigMap and then watches it until the watch ends. The normal end of a watch
// is not an error.
func (c *KubeClient) follow(ctx context.Context, name string, each func(map[string]string)) error {
	limited, cancel := context.WithTimeout(ctx, requestTime)
	m, err := c.core.ConfigMaps(c.namespace).Get(limited, name, metav1.GetOptions{})
	cancel()
	if err != nil {
		return err
	}
	each(m.Data)
	w, err := c.core.ConfigMaps(c.namespace).Watch(ctx, metav1.ListOptions{
		FieldSelector:   fields.OneTermEqualSelector("metadata.name", name).String(), // RBAC for one name requires this
		ResourceVersion: m.ResourceVersion, TimeoutSeconds: new(int64(watchTime / time.Second)),
	})
	if err != nil {
		return err
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		switch event.Type {
		case watch.Added, watch.Modified:
			if m, ok := event.Object.(*corev1.ConfigMap); ok {
				each(m.Data)
			}
		case watch.Deleted:
			return errors.New("it was deleted; its last content stays in use")
		case watch.Error:
			return fmt.Errorf("watch: %v", event.Object)
		}
	}
	return nil
}

// readMount reads the files of a mounted ConfigMap.
func readMount(path string) (map[string]string, error) {
	if path == "" {
		return nil, fs.ErrNotExist
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	data := map[string]string{}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") { // directories of the kubelet
			continue
		}
		f := filepath.Join(path, e.Name())
		info, err := os.Stat(f) // follows the kubelet's symbolic link
		if err != nil || !info.Mode().IsRegular() || info.Size() > mountBytes {
			continue
		}
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		data[e.Name()] = string(b)
	}
	if len(data) == 0 {
		return nil, fs.ErrNotExist
	}
	return data, nil
}
