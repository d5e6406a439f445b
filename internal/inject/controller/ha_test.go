//go:build unix

package controller

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// balancer replaces a Service: it connects to one of the replicas on its list.
type balancer struct {
	mu   sync.Mutex
	list []string
	next int
}

func (b *balancer) set(list ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.list = list
}

func (b *balancer) serve(ln net.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			b.mu.Lock()
			b.next++
			to := b.list[b.next%len(b.list)]
			b.mu.Unlock()
			d, err := net.Dial("tcp", to)
			if err != nil {
				return
			}
			defer d.Close()
			go func() {
				io.Copy(d, c)
				d.(*net.TCPConn).CloseWrite()
			}()
			io.Copy(c, d)
		}()
	}
}

// ADP-29: IN-08, acceptance 29: no admission fails while the CA rotates, the chart is applied again, and two
// replicas are replaced one after the other.
func TestRotationOnAPIServer(t *testing.T) {
	front := listen(t)
	p := newEnv(t, front.Addr().String())
	quick := func(c *Certificates) {
		c.PublishTime, c.KeepCA = 5*time.Second, 5*time.Second
	}
	first, second := listen(t), listen(t)
	b := &balancer{}
	b.set(first.Addr().String(), second.Addr().String())
	go b.serve(front)
	one, two := p.replica(first, quick), p.replica(second, quick)
	for _, r := range []*replica{one, two} { // a Service lists a replica only once it is ready
		p.waitUntil(func() error { return r.Ready(t.Context()) })
	}
	p.waitServing()

	ns := p.Namespace(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var admitted, failed atomic.Int64
	var reported sync.Map
	var wg sync.WaitGroup
	const rate, askers = 200, 8
	for range askers {
		wg.Go(func() {
			tick := time.NewTicker(askers * time.Second / rate)
			defer tick.Stop()
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "p-", Labels: map[string]string{"mca.tailplane.dev/inject": "true"}},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "application", Image: "app"}}}}
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				got, err := p.admin.CoreV1().Pods(ns).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
				if ctx.Err() != nil {
					return
				}
				if err == nil && len(got.Spec.InitContainers) == 0 {
					err = errors.New("admitted without the adapter")
				}
				if err != nil {
					failed.Add(1)
					reported.Store(err.Error(), true)
					continue
				}
				admitted.Add(1)
			}
		})
	}
	// The connections of the API server are long-lived. In addition, each new connection must be valid with
	// the CA bundle of that moment.
	wg.Go(func() {
		for ctx.Err() == nil {
			if err := p.bundleContains(ctx, front.Addr().String()); err != nil && ctx.Err() == nil {
				failed.Add(1)
				reported.Store(err.Error(), true)
			}
			time.Sleep(50 * time.Millisecond) // between two checks
		}
	})

	secret := func() map[string][]byte {
		s, err := p.admin.CoreV1().Secrets(systems).Get(t.Context(), "tailplane-inject-tls", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return s.Data
	}
	old := secret()[corev1.TLSCertKey]

	rotate := func() {
		was := secret()
		// Pretend that time has passed: the stored state decides the next steps.
		one.speedUp(t, p)
		p.waitUntil(func() error {
			d := secret()
			if bytes.Equal(d[corev1.TLSCertKey], was[corev1.TLSCertKey]) || d["previous-ca.crt"] != nil || d["next-tls.crt"] != nil {
				return fmt.Errorf("the rotation is not complete: next %v, previous %v", d["next-tls.crt"] != nil, d["previous-ca.crt"] != nil)
			}
			return nil
		})
	}
	rotate()
	if bytes.Equal(old, secret()[corev1.TLSCertKey]) {
		t.Error("the same certificate")
	}
	// The chart is applied again. Fields that it does not set stay, and overwritten ones are corrected.
	p.manifests(front.Addr().String(), "webhook")
	// Replace a replica: remove it from the list, stop it, and add another to the list.
	b.set(second.Addr().String())
	third := listen(t)
	three := p.replica(third, quick)
	p.waitUntil(func() error { return three.Ready(t.Context()) })
	b.set(second.Addr().String(), third.Addr().String())
	one.end()
	rotate2 := secret()[corev1.TLSCertKey]
	two.speedUp(t, p)
	p.waitUntil(func() error {
		if d := secret(); bytes.Equal(d[corev1.TLSCertKey], rotate2) || d["previous-ca.crt"] != nil || d["next-tls.crt"] != nil {
			return errors.New("the other leader has not rotated")
		}
		return nil
	})
	b.set(third.Addr().String())
	two.end()
	p.waitUntil(func() error { return p.bundleContains(t.Context(), front.Addr().String()) })
	stop()
	wg.Wait()
	t.Logf("%d admissions, %d failed", admitted.Load(), failed.Load())
	if failed.Load() > 0 || admitted.Load() < 100 {
		reported.Range(func(k, _ any) bool { t.Error(k); return true })
		t.Errorf("%d admissions, %d failed", admitted.Load(), failed.Load())
	}
}

// speedUp makes the rotation due. It writes the next certificate into the Secret, as a leader does at two
// thirds of the life.
func (r *replica) speedUp(t *testing.T, p *env) {
	t.Helper()
	p.waitUntil(func() error {
		s, err := p.admin.CoreV1().Secrets(systems).Get(t.Context(), r.Secret, metav1.GetOptions{})
		if err != nil {
			return err
		}
		rotation := r.rotation()
		stage, err := rotation.Parse(s.Data)
		if err != nil {
			return err
		}
		if stage.Next, err = rotation.Issue(time.Now()); err != nil {
			return err
		}
		s.Data = rotation.Data(stage, s.Data)
		_, err = p.admin.CoreV1().Secrets(systems).Update(t.Context(), s, metav1.UpdateOptions{})
		return err
	})
}

// bundleContains connects as the API server does, with its CA bundle.
func (p *env) bundleContains(ctx context.Context, address string) error {
	config, err := p.admin.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(ctx, "tailplane-inject", metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, w := range config.Webhooks {
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(w.ClientConfig.CABundle) {
			return fmt.Errorf("%s trusts nobody", w.Name)
		}
		d := tls.Dialer{Config: &tls.Config{RootCAs: pool, ServerName: "127.0.0.1"}}
		c, err := d.DialContext(ctx, "tcp", address)
		if err != nil {
			return fmt.Errorf("%s: %w", w.Name, err)
		}
		c.Close()
	}
	return nil
}

// TestBundleHeals checks that an overwritten CA bundle is corrected quickly.
func TestBundleHeals(t *testing.T) {
	ln := listen(t)
	p := newEnv(t, ln.Addr().String())
	p.replica(ln, nil)
	p.waitServing()
	began := time.Now()
	for _, value := range []string{`""`, `"` + strings.Repeat("QUJD", 4) + `"`} {
		// The API server refuses an invalid bundle, so the test writes an empty one or that of another CA.
		patch := fmt.Sprintf(`[{"op":"replace","path":"/webhooks/0/clientConfig/caBundle","value":%s}]`, value)
		_, err := p.admin.AdmissionregistrationV1().MutatingWebhookConfigurations().Patch(t.Context(), "tailplane-inject", types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
		if err != nil {
			continue // refused, which is fine
		}
		p.waitUntil(func() error { return p.bundleContains(t.Context(), ln.Addr().String()) })
	}
	t.Logf("healed in %v", time.Since(began).Round(time.Millisecond))
}
