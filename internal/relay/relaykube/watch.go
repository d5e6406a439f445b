package relaykube

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

// Times of a watch. A connection that died without a word is found out by its
// end, which the API server is asked for.
const (
	watchTime  = 5 * time.Minute
	retryPause = 2 * time.Second
	mountBytes = 1 << 20
)

// Watch calls each with the data of a ConfigMap, at first and after each change,
// until ctx ends. While the API server does not answer, it takes what is mounted
// at mount ("" for nowhere), which the kubelet brings up to date within minutes.
func (c *Client) Watch(ctx context.Context, name, mount string, log *slog.Logger, each func(map[string]string)) error {
	for {
		err := c.follow(ctx, name, each)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			log.Warn("the group's ConfigMap cannot be watched; trying again", "configMap", name, "err", err)
			if data, merr := readMount(mount); merr == nil {
				each(data)
			} else if mount != "" && !errors.Is(merr, fs.ErrNotExist) {
				log.Warn("what is mounted cannot be read", "path", mount, "err", merr)
			}
		}
		if retry.Sleep(ctx, retryPause) != nil {
			return nil
		}
	}
}

// follow reads the ConfigMap and one watch of it to its end, which is no error.
func (c *Client) follow(ctx context.Context, name string, each func(map[string]string)) error {
	asking, cancel := context.WithTimeout(ctx, requestTime)
	m, err := c.core.ConfigMaps(c.namespace).Get(asking, name, metav1.GetOptions{})
	cancel()
	if err != nil {
		return err
	}
	each(m.Data)
	w, err := c.core.ConfigMaps(c.namespace).Watch(ctx, metav1.ListOptions{
		FieldSelector:   fields.OneTermEqualSelector("metadata.name", name).String(), // a right on one name allows no other watch
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
			return errors.New("it was deleted; what it said last holds")
		case watch.Error:
			return fmt.Errorf("watch: %v", event.Object)
		}
	}
	return nil
}

// readMount reads the files of a mounted ConfigMap, as its data.
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
		if strings.HasPrefix(e.Name(), ".") { // the kubelet's own folders
			continue
		}
		f := filepath.Join(path, e.Name())
		info, err := os.Stat(f) // through the kubelet's link
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
