package controller

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// FirstUseConfigMap is the ConfigMap of the devices for which first use is off. Each key is the name of the default session of
// a login on a device. Its value is the time, RFC 3339, and the device's ID. While it has the key "full", or does not
// exist, first use is off for all devices.
const FirstUseConfigMap = "tailplane-first-use"

const (
	firstUseFull     = "full" // no sign-in has this name, because names end in a hash
	maxFirstUseMarks = 5000
	markPause        = 250 * time.Millisecond // between two writes of one process
	markTries        = 10
)

// FirstUseMarks is the record of the devices for which first use is off. The operator and the access servers of one cluster
// share it. It needs get and update on one ConfigMap, which the manifests create. It implements signin.FirstUseMarks.
type FirstUseMarks struct {
	client client.Client
	key    client.ObjectKey
	now    func() time.Time

	mu      sync.Mutex
	waiting map[string]*string // values by key; nil removes the key
	batch   *markBatch         // the write that waiting belongs to; nil: none
	written time.Time          // when the last write began
}

// A markBatch is one write of all waiting marks.
type markBatch struct {
	done chan struct{}
	err  error // set before done is closed
}

var _ signin.FirstUseMarks = (*FirstUseMarks)(nil)

// NewFirstUseMarks returns the record in the ConfigMap of that namespace. It makes no request.
func NewFirstUseMarks(config *rest.Config, namespace string, now func() time.Time) (*FirstUseMarks, error) {
	c, err := kube.NewConfigMapClient(config)
	return &FirstUseMarks{client: c, key: client.ObjectKey{Namespace: namespace, Name: FirstUseConfigMap}, now: now, waiting: map[string]*string{}}, err
}

// IsOff reads the API server's copy. Without the ConfigMap, first use is off.
func (f *FirstUseMarks) IsOff(ctx context.Context, name string) (bool, error) {
	m := new(corev1.ConfigMap)
	switch err := f.client.Get(ctx, f.key, m); {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return true, kube.ExplainManifestObject("read", "ConfigMap", f.key, err)
	}
	_, full := m.Data[firstUseFull]
	_, off := m.Data[name]
	return off || full || m.DeletionTimestamp != nil, nil
}

// TurnOff writes a mark together with all others that wait. Without the ConfigMap, or when it is full, it writes none,
// because first use is off for all devices then.
func (f *FirstUseMarks) TurnOff(ctx context.Context, name, device string) error {
	return f.write(ctx, name, new(f.now().UTC().Format(time.RFC3339)+" "+device))
}

// TurnOn removes a mark.
func (f *FirstUseMarks) TurnOn(ctx context.Context, name string) error {
	m := new(corev1.ConfigMap) // most logins have none to remove
	if err := f.client.Get(ctx, f.key, m); err != nil {
		if apierrors.IsForbidden(err) { // manifests of an older version: first use is off for all devices, and a login must not fail for it
			return nil
		}
		return ignoreWithoutMarks(err)
	}
	if _, off := m.Data[name]; !off {
		return nil
	}
	return f.write(ctx, name, nil)
}

// ignoreWithoutMarks returns nil for an error that says that there is no record.
func ignoreWithoutMarks(err error) error {
	if apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil
	}
	return err
}

// write joins a change to the next write and waits for it.
func (f *FirstUseMarks) write(ctx context.Context, name string, value *string) error {
	f.mu.Lock()
	if f.batch == nil {
		f.batch = &markBatch{done: make(chan struct{})}
		go f.flush(context.WithoutCancel(ctx), f.written.Add(markPause).Sub(f.now()))
	}
	b := f.batch
	f.waiting[name] = value
	f.mu.Unlock()
	select {
	case <-b.done:
		return b.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// flush writes all waiting changes after a pause.
func (f *FirstUseMarks) flush(ctx context.Context, pause time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, reconcileTimeout)
	defer cancel()
	_ = retry.Sleep(ctx, pause) // without the pause there is one more write
	f.mu.Lock()
	b, changes := f.batch, f.waiting
	f.batch, f.waiting, f.written = nil, map[string]*string{}, f.now()
	f.mu.Unlock()
	b.err = ignoreWithoutMarks(f.apply(ctx, changes))
	close(b.done)
}

// apply writes changes to the API server's copy.
func (f *FirstUseMarks) apply(ctx context.Context, changes map[string]*string) error {
	for range markTries {
		m := new(corev1.ConfigMap)
		if err := f.client.Get(ctx, f.key, m); err != nil {
			return err
		}
		if !changeMarks(m, changes) {
			return nil
		}
		if err := f.client.Update(ctx, m); !apierrors.IsConflict(err) {
			return err
		}
	}
	return fmt.Errorf("other servers change the ConfigMap %s continually", f.key)
}

// changeMarks applies changes to m and reports whether they change it. Before the marks exceed their number it writes the
// key full instead, which only an administrator removes.
func changeMarks(m *corev1.ConfigMap, changes map[string]*string) bool {
	if m.Data == nil {
		m.Data = map[string]string{}
	}
	before := maps.Clone(m.Data)
	for name, value := range changes {
		_, full := m.Data[firstUseFull]
		_, there := m.Data[name]
		switch {
		case value == nil:
			delete(m.Data, name)
		case there, full:
		case len(m.Data) >= maxFirstUseMarks-1:
			m.Data[firstUseFull] = strings.Fields(*value)[0]
		default:
			m.Data[name] = *value
		}
	}
	return !maps.Equal(before, m.Data)
}
