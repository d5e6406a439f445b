package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/kube/conditions"
	"github.com/tailplane/tailplane/internal/tailnet/tsapi"
	"github.com/tailplane/tailplane/internal/util/retry"
	"github.com/tailplane/tailplane/internal/util/secret"
)

const (
	keyClientID     = "client_id"
	keyClientSecret = "client_secret"

	// reasonBaseURLNotAllowed means that the settings do not allow the operator to send
	// credentials to this URL.
	reasonBaseURLNotAllowed = "APIBaseURLNotAllowed"

	assertionLifetime = 10 * time.Minute
	filesPollInterval = 2 * time.Second
)

// foundCredential is the result of a search for the credential of a tailnet: the credential and its version,
// or the reason why there is none.
type foundCredential struct {
	version    string
	credential tsapi.Credential
	problem    conditions.Condition
	secret     types.NamespacedName // the Secret to watch
}

func missingCredential(reason, format string, args ...any) foundCredential {
	return foundCredential{problem: conditions.False(reason, fmt.Sprintf(format, args...))}
}

// credential finds the credential of a tailnet. An error means that it is unknown whether a
// credential exists.
func (r *tailnetReconciler) credential(ctx context.Context, o *v1alpha1.TailscaleTailnet) (foundCredential, error) {
	spec := o.Spec
	if !r.baseURLAllowed(spec.APIBaseURL) {
		return missingCredential(
			reasonBaseURLNotAllowed,
			"The operator sends credentials only to the APIs of its settings (tailnet.apiBaseURLs).",
		), nil
	}
	switch {
	case spec.WorkloadIdentity != nil && spec.OAuthSecretName != "":
		return missingCredential(v1alpha1.ReasonCredentialsMissing, "workloadIdentity and oauthSecretName exclude each other."), nil
	case spec.WorkloadIdentity != nil:
		w := *spec.WorkloadIdentity
		return foundCredential{version: "workload-identity", credential: tsapi.Credential{ClientID: w.ClientID,
			Assert: func(ctx context.Context) (secret.Text, error) { return r.serviceAccountToken(ctx, w.Audience) }}}, nil
	case spec.OAuthSecretName != "":
		return r.secretCredential(ctx, spec)
	case spec.OAuthSecretNamespace != "":
		return missingCredential(v1alpha1.ReasonCredentialsMissing, "oauthSecretNamespace needs oauthSecretName."), nil
	}
	return r.fileCredential()
}

func (r *tailnetReconciler) baseURLAllowed(base string) bool {
	want, err := tsapi.ParseBaseURL(base)
	return err == nil && slices.ContainsFunc(r.BaseURLs, func(s string) bool {
		u, err := tsapi.ParseBaseURL(s)
		return err == nil && *u == *want
	})
}

func (r *tailnetReconciler) secretCredential(ctx context.Context, spec v1alpha1.TailscaleTailnetSpec) (foundCredential, error) {
	key := types.NamespacedName{Namespace: cmp.Or(spec.OAuthSecretNamespace, r.Namespace), Name: spec.OAuthSecretName}
	notAllowed := missingCredential(
		v1alpha1.ReasonSecretNamespaceNotAllowed,
		"The operator may not read Secrets in the namespace %q; its settings list the allowed namespaces (credentialNamespaces).",
		key.Namespace,
	)
	if key.Namespace != r.Namespace && !slices.Contains(r.CredentialNamespaces, key.Namespace) {
		return notAllowed, nil
	}
	var s corev1.Secret
	err := r.Get(ctx, key, &s)
	var out foundCredential
	switch {
	case apierrors.IsNotFound(err):
		out = missingCredential(v1alpha1.ReasonSecretNotFound, "There is no Secret %s.", key)
	case apierrors.IsForbidden(err):
		out = notAllowed
	case err != nil:
		return foundCredential{}, fmt.Errorf("read the Secret %s: %w", key, err)
	default:
		out = oauthCredential(string(s.UID)+"/"+s.ResourceVersion, s.Data[keyClientID], s.Data[keyClientSecret],
			fmt.Sprintf("The Secret %s needs non-empty keys %s and %s.", key, keyClientID, keyClientSecret))
	}
	out.secret = key
	return out, nil
}

// oauthCredential returns the credential of an OAuth client. incomplete is the message if a part of it is empty.
func oauthCredential(version string, id, clientSecret []byte, incomplete string) foundCredential {
	c := tsapi.Credential{ClientID: trimNewline(id), Secret: secret.New(trimNewline(clientSecret))}
	if c.ClientID == "" || c.Secret.IsZero() {
		return missingCredential(v1alpha1.ReasonSecretKeyMissing, "%s", incomplete)
	}
	return foundCredential{version: version, credential: c}
}

func (r *tailnetReconciler) fileCredential() (foundCredential, error) {
	if r.ClientIDFile == "" {
		return missingCredential(
			v1alpha1.ReasonCredentialsMissing,
			"The tailnet has neither oauthSecretName nor workloadIdentity, and the operator has no mounted credential.",
		), nil
	}
	version, err := r.filesVersion()
	if errors.Is(err, os.ErrNotExist) {
		return missingCredential(v1alpha1.ReasonCredentialsMissing, "The operator's mounted credential does not exist."), nil
	}
	var id, clientSecret []byte
	if err == nil {
		id, err = os.ReadFile(r.ClientIDFile)
	}
	if err == nil {
		clientSecret, err = os.ReadFile(r.ClientSecretFile)
	}
	if err != nil {
		return foundCredential{}, fmt.Errorf("read the mounted credential: %w", err)
	}
	return oauthCredential(version, id, clientSecret, "The operator's mounted credential is empty."), nil
}

// filesVersion returns a version that changes with the modification times of the mounted
// credential.
func (r *tailnetReconciler) filesVersion() (string, error) {
	version := "files"
	for _, name := range []string{r.ClientIDFile, r.ClientSecretFile} {
		info, err := os.Stat(name)
		if err != nil {
			return "", err
		}
		version += fmt.Sprintf("/%d", info.ModTime().UnixNano())
	}
	return version, nil
}

// watchFiles triggers a reconcile of all tailnets when the mounted credential changes. It polls,
// because the kubelet changes a mounted Secret through a symbolic link, which cannot be watched by
// name.
func (r *tailnetReconciler) watchFiles(ctx context.Context) {
	if r.ClientIDFile == "" {
		return
	}
	t := time.NewTicker(filesPollInterval)
	defer t.Stop()
	was, _ := r.filesVersion()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		is, _ := r.filesVersion()
		if is == was {
			continue
		}
		var all v1alpha1.TailscaleTailnetList
		if err := r.List(ctx, &all); err != nil {
			r.Log.Error("list tailnets in the cache", "err", err)
			continue
		}
		was = is
		for _, t := range pointers(all.Items) {
			r.watches.notify(ctx, t.Name)
		}
	}
}

// trimNewline returns b as a string without one trailing newline, which editors often add.
func trimNewline(b []byte) string {
	return strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r")
}

// serviceAccountToken requests a token for the operator's own ServiceAccount.
func (r *tailnetReconciler) serviceAccountToken(ctx context.Context, audience string) (secret.Text, error) {
	me := &authenticationv1.SelfSubjectReview{}
	if err := r.Create(ctx, me, client.DisableReadYourWritesConsistency); err != nil {
		return secret.Text{}, fmt.Errorf("get the operator's own account: %w", err)
	}
	name, ok := strings.CutPrefix(me.Status.UserInfo.Username, "system:serviceaccount:")
	namespace, name, two := strings.Cut(name, ":")
	if !ok || !two {
		return secret.Text{}, fmt.Errorf("the operator runs as %q, which is not a ServiceAccount", me.Status.UserInfo.Username)
	}
	req := &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{
			Audiences:         []string{audience},
			ExpirationSeconds: new(int64(assertionLifetime / time.Second)),
		},
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if err := r.SubResource("token").Create(ctx, account, req); err != nil {
		return secret.Text{}, fmt.Errorf("token for %s/%s: %w", namespace, name, err)
	}
	return secret.New(req.Status.Token), nil
}

// secretWatches watch the Secrets of tailnets individually by name. The operator therefore needs
// no right to list Secrets or to read other Secrets.
type secretWatches struct {
	secrets  corev1client.SecretsGetter
	log      *slog.Logger
	changed  chan event.GenericEvent // sends a tailnet when its Secret changes
	lifetime context.Context
	running  sync.WaitGroup

	mu        sync.Mutex
	byTailnet map[string]secretWatch
}

type secretWatch struct {
	secret types.NamespacedName
	stop   context.CancelFunc
}

func newSecretWatches(life context.Context, secrets corev1client.SecretsGetter, log *slog.Logger) *secretWatches {
	return &secretWatches{
		secrets:   secrets,
		log:       log,
		changed:   make(chan event.GenericEvent),
		lifetime:  life,
		byTailnet: map[string]secretWatch{},
	}
}

// follow watches the given Secret for the tailnet and stops the previous watch for it. The zero
// name only stops it.
func (s *secretWatches) follow(tailnet string, secret types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, ok := s.byTailnet[tailnet]
	if ok && old.secret == secret || s.lifetime.Err() != nil {
		return
	}
	if ok {
		old.stop()
		delete(s.byTailnet, tailnet)
	}
	if secret.Name == "" {
		return
	}
	ctx, stop := context.WithCancel(s.lifetime)
	s.byTailnet[tailnet] = secretWatch{secret, stop}
	s.running.Go(func() { s.watch(ctx, tailnet, secret) })
}

func (s *secretWatches) watch(ctx context.Context, tailnet string, secret types.NamespacedName) {
	const first, last = time.Second, 30 * time.Second
	pause, seen := first, ""
	for {
		// Without a resourceVersion the watch starts with the current Secret.
		w, err := s.secrets.Secrets(secret.Namespace).Watch(ctx, metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector("metadata.name", secret.Name).String(), TimeoutSeconds: new(int64(600))})
		if err == nil {
			pause = first
			for e := range w.ResultChan() {
				switch o, _ := e.Object.(metav1.Object); {
				case o == nil || e.Type == watch.Bookmark:
				case e.Type == watch.Deleted:
					seen = ""
					s.notify(ctx, tailnet)
				case o.GetResourceVersion() != seen:
					seen = o.GetResourceVersion()
					s.notify(ctx, tailnet)
				}
			}
			w.Stop()
		} else if ctx.Err() == nil {
			s.log.Warn("watch the Secret of a tailnet", "tailnet", tailnet, "err", err)
		}
		if retry.Sleep(ctx, pause) != nil {
			return
		}
		pause = min(2*pause, last)
		s.notify(ctx, tailnet) // the Secret may have been deleted between two watches
	}
}

func (s *secretWatches) notify(ctx context.Context, tailnet string) {
	e := event.GenericEvent{Object: &v1alpha1.TailscaleTailnet{ObjectMeta: metav1.ObjectMeta{Name: tailnet}}}
	select {
	case s.changed <- e:
	case <-ctx.Done():
	}
}
