package server

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/settings"
	"github.com/tailplane/tailplane/internal/tailnet"
	"github.com/tailplane/tailplane/internal/util/secret"
)

// authKey reads the key with which a node joins without a person. A node that has joined before needs none.
func authKey(set settings.File, log *slog.Logger) (secret.Text, error) {
	path := set.Tailnet.AuthKeyFile
	if path == "" {
		return secret.Text{}, nil
	}
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return secret.Text{}, fmt.Errorf("tailnet.authKeyFile: %w", err)
	}
	if err != nil {
		log.Warn("the auth key file does not exist; continuing without a key", "path", path)
	}
	return secret.New(strings.TrimSpace(string(b))), nil
}

func newNode(set settings.File, log *slog.Logger) (*tailnet.Node, error) {
	key, err := authKey(set, log)
	if err != nil {
		return nil, err
	}
	t := set.Tailnet
	return tailnet.New(tailnet.Config{Hostname: t.Hostname, Tags: t.Tags, ControlURL: t.ControlURL, AuthKey: key, StateDir: t.StateDir, StateSecret: t.StateSecret,
		Port: t.Port, InsecureHTTP: t.InsecureHTTP, Capability: set.Signin.Capability, JoinTimeout: time.Duration(t.JoinTimeout), Log: log})
}

func limits(l settings.Limits) httpapi.Limits {
	rate := func(r settings.Rate) httpapi.Rate { return httpapi.Rate{PerMinute: r.PerMinute, Burst: r.Burst} }
	return httpapi.Limits{
		Verbs: map[access.Verb]httpapi.Rate{access.SigninLogin: rate(l.Login), access.SigninKubeconfig: rate(l.Kubeconfig)},
		Other: rate(l.Others), All: rate(l.All), WaitersPerCaller: 4, Waiters: 1000, Connections: l.Connections,
	}
}
