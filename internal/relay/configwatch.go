package relay

import (
	"context"
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
	"k8s.io/apimachinery/pkg/watch"

	"github.com/tailplane/tailplane/internal/util/retry"
)

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
	asking, cancel := context.WithTimeout(ctx, requestTime)
	m, err := c.core.ConfigMaps(c.namespace).Get(asking, name, metav1.GetOptions{})
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
