// Package controller manages the certificates of the injection webhook. It makes the API server trust them,
// without a gap during a rotation. It keeps law 9: the state of a rotation is in a Secret, so that another
// leader can continue it.
package controller

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync/atomic"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// Certificates manages the serving certificate of one webhook replica. Fields without a remark are required.
type Certificates struct {
	Config    *rest.Config
	Namespace string   // of the Secret and the Lease
	Secret    string   // the manifests create it empty
	Lease     string   // elects the replica that rotates
	Webhook   string   // name of the MutatingWebhookConfiguration, and of the optional ValidatingWebhookConfiguration
	Identity  string   // of this replica
	Hosts     []string // DNS names and addresses at which the API server calls the webhook
	Log       *slog.Logger
	Now       func() time.Time

	// External means that another program, such as cert-manager, manages the Secret and the CA bundle. Lease,
	// Webhook and Hosts are not needed then.
	External bool

	Lifetime     time.Duration // of a certificate; renewal is at two thirds
	PublishTime  time.Duration // from publishing a CA bundle to using its certificate
	KeepCA       time.Duration // how long the old CA stays in the bundle
	PollInterval time.Duration // the interval between reads of the Secret

	client  *kubernetes.Clientset
	current atomic.Pointer[servedCertificate]
	trigger chan struct{} // triggers a read of the Secret
}

// Production values. Tests use others.
const (
	DefaultLifetime     = 90 * 24 * time.Hour
	DefaultPublishTime  = time.Minute
	DefaultKeepCA       = 5 * time.Minute
	DefaultPollInterval = 10 * time.Second
)

// servedCertificate is the certificate that was read last.
type servedCertificate struct {
	certificate *tls.Certificate
	read        time.Time
}

// stalePolls is how long reads of the Secret may fail before the replica is not ready. It is less than KeepCA: a
// replica that has missed a new certificate gets no requests when the old CA is removed.
const stalePolls = 12 // times PollInterval

// triggeredPolls is the interval between full checks by the leader, in multiples of PollInterval.
const triggeredPolls = 6

const requestTimeout = 20 * time.Second

// GetCertificate implements the callback of [tls.Config].
func (c *Certificates) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	s := c.current.Load()
	if s == nil {
		return nil, errors.New("there is no certificate yet")
	}
	return s.certificate, nil
}

// Ready returns the reason why this replica must not get requests. It is a readiness check.
func (c *Certificates) Ready(context.Context) error {
	s := c.current.Load()
	now := c.Now()
	switch {
	case s == nil:
		return errors.New("there is no certificate yet")
	case now.After(s.certificate.Leaf.NotAfter):
		return fmt.Errorf("the certificate expired at %s", s.certificate.Leaf.NotAfter.Format(time.RFC3339))
	case now.Sub(s.read) > stalePolls*c.PollInterval:
		return fmt.Errorf(
			"the Secret %s was last read at %s; the API server may not trust its certificate",
			c.Secret,
			s.read.UTC().Format(time.RFC3339),
		)
	}
	return nil
}

// Run reads the Secret until ctx ends, and rotates the certificates while this replica is the leader.
func (c *Certificates) Run(ctx context.Context) error {
	if c.Config == nil || c.Namespace == "" || c.Secret == "" || c.Log == nil || c.Now == nil || c.PollInterval <= 0 ||
		!c.External &&
			(c.Lease == "" || c.Webhook == "" || c.Identity == "" || len(c.Hosts) == 0 || c.Lifetime <= 0 || c.PublishTime <= 0 || c.KeepCA <= 0) {
		return errors.New("the webhook's certificates: a required field is missing")
	}
	var err error
	if c.client, err = kubernetes.NewForConfig(kube.Unthrottled(c.Config)); err != nil {
		return err
	}
	c.trigger = make(chan struct{}, 1)
	rotated := make(chan error, 1)
	go func() {
		var err error
		if !c.External {
			err = newElection(c.Config, c.Namespace, c.Lease, c.Identity, c.Log).RunTerms(ctx, c.runRotation)
		}
		rotated <- err
	}()
	c.pollSecret(ctx)
	return <-rotated
}

// pollSecret reads the Secret periodically.
func (c *Certificates) pollSecret(ctx context.Context) {
	tick := time.NewTicker(c.PollInterval)
	defer tick.Stop()
	var last lastError
	for {
		if err := c.loadSecret(ctx); last.isNew(ctx, err) {
			c.Log.Warn("the webhook's certificate", "err", err)
		}
		select {
		case <-tick.C:
		case <-c.trigger:
		case <-ctx.Done():
			return
		}
	}
}

func (c *Certificates) getSecret(ctx context.Context) (*corev1.Secret, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	s, err := c.client.CoreV1().Secrets(c.Namespace).Get(ctx, c.Secret, metav1.GetOptions{})
	if err != nil {
		return nil, kube.ExplainManifestObject("get", "Secret", types.NamespacedName{Namespace: c.Namespace, Name: c.Secret}, err)
	}
	return s, nil
}

// loadSecret loads the certificate from the Secret.
func (c *Certificates) loadSecret(ctx context.Context) error {
	secret, err := c.getSecret(ctx)
	if err != nil {
		return err
	}
	now := c.Now()
	old := c.current.Load()
	if old != nil && bytes.Equal(old.certificate.Leaf.Raw, firstCertificate(secret.Data[corev1.TLSCertKey])) {
		c.current.Store(&servedCertificate{old.certificate, now})
		return nil
	}
	certificate, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		if len(secret.Data[corev1.TLSCertKey]) == 0 {
			return fmt.Errorf("the Secret %s has no certificate yet", c.Secret)
		}
		return fmt.Errorf("the Secret %s: %w", c.Secret, err) // keep serving the previous certificate
	}
	c.current.Store(&servedCertificate{&certificate, now})
	c.Log.Info("the webhook has a certificate", "until", certificate.Leaf.NotAfter, "serial", certificate.Leaf.SerialNumber.Text(16))
	return nil
}

// firstCertificate returns the DER of the first certificate in PEM text.
func firstCertificate(text []byte) []byte {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil
	}
	return block.Bytes
}

// lastError is the text of the last error of a repeated task, so that each error is logged once.
type lastError string

// isNew reports whether err is to be logged. It records err, unless ctx has ended.
func (l *lastError) isNew(ctx context.Context, err error) bool {
	was := *l
	*l = ""
	if err != nil && ctx.Err() == nil {
		*l = lastError(err.Error())
	}
	return *l != "" && *l != was
}

// newElection returns the election of the replica that does one of the webhook's tasks.
func newElection(config *rest.Config, namespace, lease, identity string, log *slog.Logger) *kube.Election {
	var last lastError // the election makes one request after the other
	return &kube.Election{
		Config: config, Namespace: namespace, Lease: lease, Identity: identity,
		Duration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
		Report: func(ctx context.Context, doing string, err error) {
			if err != nil {
				err = kube.ExplainManifestObject(doing, "Lease", types.NamespacedName{Namespace: namespace, Name: lease}, err)
			}
			if last.isNew(ctx, err) {
				log.Warn("the election failed; it is tried again", "lease", lease, "err", err)
			}
		},
	}
}

// runRotation performs each step when it is due, and checks again whenever the webhook configuration changes.
func (c *Certificates) runRotation(ctx context.Context) {
	c.Log.Info("this replica manages the webhook's certificates", "lease", c.Lease)
	touched := make(chan struct{}, 1)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		c.watchBundles(ctx, touched)
	}()
	defer func() { <-watched }()
	var last lastError
	for ctx.Err() == nil {
		wake, err := c.rotateOnce(ctx)
		if err != nil {
			wake = c.Now().Add(c.PollInterval)
		}
		if last.isNew(ctx, err) && !kube.IsStale(err) {
			c.Log.Error("the rotation of the webhook's certificates failed", "err", err)
		}
		wait := min(max(wake.Sub(c.Now()), time.Millisecond), triggeredPolls*c.PollInterval) // the clock or the Secret may change meanwhile
		_ = retry.SleepOrWake(ctx, wait, touched)                                            // the loop checks ctx
	}
}

// rotation returns the rotation of the serving certificate.
func (c *Certificates) rotation() *kube.Rotation {
	serving := kube.Leaf{Certificate: corev1.TLSCertKey, Key: corev1.TLSPrivateKeyKey, Usage: x509.ExtKeyUsageServerAuth, Names: c.Hosts}
	return &kube.Rotation{
		Name:        "tailplane-inject",
		Leaves:      []kube.Leaf{serving},
		Lifetime:    c.Lifetime,
		PublishTime: c.PublishTime,
		RetainTime:  c.KeepCA,
	}
}

// rotateOnce publishes the CA bundle of the stored stage, then performs the next step.
func (c *Certificates) rotateOnce(ctx context.Context) (wake time.Time, err error) {
	secret, err := c.getSecret(ctx)
	if err != nil {
		return time.Time{}, err
	}
	rotation := c.rotation()
	was, err := rotation.Parse(secret.Data)
	if err != nil {
		return time.Time{}, fmt.Errorf("the Secret %s: %w", c.Secret, err)
	}
	if bundle := was.Bundle(); len(bundle) > 0 {
		if err := c.publish(ctx, bundle); err != nil {
			return time.Time{}, err
		}
	}
	now := c.Now()
	next, wake, err := rotation.Advance(was, now)
	if err != nil {
		return time.Time{}, err
	}
	data := rotation.Data(next, secret.Data)
	if maps.EqualFunc(data, secret.Data, bytes.Equal) {
		return wake, nil
	}
	secret.Data = data
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if _, err := c.client.CoreV1().Secrets(c.Namespace).Update(ctx, secret, metav1.UpdateOptions{FieldManager: c.Lease}); err != nil {
		return time.Time{}, kube.ExplainManifestObject(
			"update",
			"Secret",
			types.NamespacedName{Namespace: c.Namespace, Name: c.Secret},
			err,
		)
	}
	c.Log.Info(
		"a rotation step of the webhook's certificates is stored",
		"next",
		next.Next != nil,
		"published",
		!next.Published.IsZero(),
		"previous",
		next.Previous != nil,
	)
	select {
	case c.trigger <- struct{}{}:
	default:
	}
	return now, nil // the next call publishes the bundle of the new stage
}

// publish writes the bundle into every webhook of the configurations. It returns once it has read the bundle
// back from the API server.
func (c *Certificates) publish(ctx context.Context, bundle []byte) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if err := c.updateBundle(ctx, "mutatingwebhookconfigurations", bundle); err != nil {
		return fmt.Errorf("CA bundle of the MutatingWebhookConfiguration %s: %w", c.Webhook, err)
	}
	if err := c.updateBundle(ctx, "validatingwebhookconfigurations", bundle); err != nil && !apierrors.IsNotFound(err) { // it is optional
		return fmt.Errorf("CA bundle of the ValidatingWebhookConfiguration %s: %w", c.Webhook, err)
	}
	return nil
}

// updateBundle patches the webhooks of a configuration until it reads back the bundle in each.
func (c *Certificates) updateBundle(ctx context.Context, resource string, bundle []byte) error {
	type op struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	client := c.client.AdmissionregistrationV1().RESTClient()
	for range 3 {
		is := client.Get().Resource(resource).Name(c.Webhook).SetHeader("Accept", "application/json").Do(ctx)
		if err := is.Error(); err != nil {
			return err
		}
		text, _ := is.Raw()                                             // fails only with the error above
		var config admissionregistrationv1.MutatingWebhookConfiguration // the fields that are read are the same in both kinds
		if err := json.Unmarshal(text, &config); err != nil {
			return err
		}
		var patch []op
		for i, w := range config.Webhooks {
			if !bytes.Equal(w.ClientConfig.CABundle, bundle) {
				// add, because replace fails if there is no bundle; test, because the order of the entries
				// may have changed
				patch = append(
					patch,
					op{"test", fmt.Sprintf("/webhooks/%d/name", i), w.Name},
					op{"add", fmt.Sprintf("/webhooks/%d/clientConfig/caBundle", i), bundle},
				)
			}
		}
		if len(patch) == 0 {
			return nil
		}
		b, err := json.Marshal(patch)
		if err != nil {
			return err
		}
		err = client.Patch(types.JSONPatchType).Resource(resource).Name(c.Webhook).
			VersionedParams(&metav1.PatchOptions{FieldManager: c.Lease}, metav1.ParameterCodec).Body(b).Do(ctx).Error()
		if err != nil {
			return err
		}
		c.Log.Info("the CA bundle is written for the API server", "webhook", c.Webhook)
	}
	return errors.New("another writer also changes it")
}

// watchBundles notifies touched when the webhook configuration changes.
func (c *Certificates) watchBundles(ctx context.Context, touched chan<- struct{}) {
	for ctx.Err() == nil {
		w, err := c.client.AdmissionregistrationV1().MutatingWebhookConfigurations().Watch(ctx, metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, c.Webhook).String(),
		})
		if err != nil {
			c.Log.Debug("watch the webhook's configuration", "err", err)
		} else {
			for range w.ResultChan() {
				select {
				case touched <- struct{}{}:
				default:
				}
			}
			w.Stop()
		}
		_ = retry.Sleep(ctx, time.Second) // the loop checks ctx
	}
}
