package controller

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/signin"
)

// UsedTokensConfigMap is the ConfigMap of the OIDC tokens that devices have used. Each key is a hash of the
// issuer and the ID of a token, and its value the end of the token in Unix seconds and the device's ID.
const UsedTokensConfigMap = "tailplane-oidc-used"

// Limits of the record of used tokens.
const (
	maxUsedTokens      = 2000
	maxTokensPerDevice = 200 // so that one device cannot lock out the others
	keepUsed           = time.Minute
	useTries           = 10
)

// UsedTokens is the record of used tokens that the access servers of one cluster share. It needs get and
// update on one ConfigMap, which the manifests create. It implements signin.UsedTokens.
type UsedTokens struct {
	client client.Client
	key    client.ObjectKey
	now    func() time.Time

	mu sync.Mutex // held during a write, so that the requests of one server do not conflict
}

var _ signin.UsedTokens = (*UsedTokens)(nil)

// NewUsedTokens returns the record in the ConfigMap of that namespace. It makes no request.
func NewUsedTokens(config *rest.Config, namespace string, now func() time.Time) (*UsedTokens, error) {
	c, err := kube.NewConfigMapClient(config)
	return &UsedTokens{client: c, key: client.ObjectKey{Namespace: namespace, Name: UsedTokensConfigMap}, now: now}, err
}

// Use records that the device used the token. It reads and writes the API server's copy, so that two servers
// cannot both accept a token. It removes the entries of tokens that have ended.
func (u *UsedTokens) Use(ctx context.Context, t access.Token, device string) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	for range useTries {
		m := new(corev1.ConfigMap)
		if err := u.client.Get(ctx, u.key, m); err != nil {
			return kube.ExplainManifestObject("read", "ConfigMap", u.key, err)
		}
		changed, err := addUsedToken(m, t, device, u.now())
		if err != nil || !changed {
			return err
		}
		switch err := u.client.Update(ctx, m); {
		case err == nil:
			return nil
		case !apierrors.IsConflict(err):
			return kube.ExplainManifestObject("write", "ConfigMap", u.key, err)
		}
	}
	return fmt.Errorf("other servers change the ConfigMap %s continually", u.key)
}

// addUsedToken adds the use of a token to m. changed is false if m has it already.
func addUsedToken(m *corev1.ConfigMap, t access.Token, device string, now time.Time) (changed bool, err error) {
	name, ofDevice := usedTokenKey(t), 0
	for key, value := range m.Data {
		end, owner, err := parseUsedToken(value)
		switch {
		case err != nil:
			return false, fmt.Errorf("the ConfigMap %s, data %.70q: %w; remove this entry", m.Name, key, err)
		case key == name && owner != device:
			return false, signin.ErrTokenUsed
		case key == name:
			return false, nil
		case now.After(end.Add(keepUsed)):
			delete(m.Data, key)
		case owner == device:
			ofDevice++
		}
	}
	switch {
	case len(m.Data) >= maxUsedTokens:
		return false, fmt.Errorf("the ConfigMap %s has %d used tokens that have not ended, the most that it can have", m.Name, len(m.Data))
	case ofDevice >= maxTokensPerDevice:
		return false, fmt.Errorf("the device %s used %d tokens that have not ended, the most for one device", device, ofDevice)
	case m.Data == nil:
		m.Data = map[string]string{}
	}
	m.Data[name] = strconv.FormatInt(t.Expires.Unix(), 10) + " " + device
	return true, nil
}

// usedTokenKey returns the key of a token.
func usedTokenKey(t access.Token) string {
	h := sha256.New()
	for _, part := range []string{t.Issuer, t.ID} {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		h.Write([]byte(part))
	}
	return hex.EncodeToString(h.Sum(nil))
}

// parseUsedToken parses a value of the ConfigMap.
func parseUsedToken(value string) (end time.Time, device string, err error) {
	seconds, device, _ := strings.Cut(value, " ")
	n, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil || device == "" {
		return time.Time{}, "", errors.New("it is not the end of a token and the ID of a device")
	}
	return time.Unix(n, 0), device, nil
}
