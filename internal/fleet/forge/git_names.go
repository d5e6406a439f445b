package forge

import "strings"

const plainChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._/-"

// isBranch reports whether a text is a valid branch name. It accepts only plain names, fewer than
// git does.
func isBranch(s string) bool {
	return len(s) <= 200 && strings.Trim(s, plainChars) == "" && isPath(s) &&
		!strings.HasPrefix(s, "-") && !strings.Contains(s, "..") && !strings.HasSuffix(s, ".") && !strings.HasSuffix(s, ".lock")
}

// isPath reports whether a text is a valid path of a file in a repository. It refuses paths that
// lead out of the repository, into git's own directory or into a forge's directory.
func isPath(s string) bool {
	if s == "" || len(s) > 1000 || strings.ContainsAny(s, "\\\x00\r\n") {
		return false
	}
	for i, part := range strings.Split(s, "/") {
		switch strings.ToLower(part) {
		case "", ".", "..", ".git":
			return false
		case ".github", ".gitlab", ".gitlab-ci.yml":
			if i == 0 {
				return false // forges run the files in it
			}
		}
	}
	return true
}

// isCommit reports whether a text is a full commit ID.
func isCommit(s string) bool {
	return len(s) >= 40 && len(s) <= 64 && strings.Trim(s, "0123456789abcdef") == ""
}

// coAuthors returns the names and addresses in the Co-authored-by trailers of a commit message.
func coAuthors(message string) (out []string) {
	for l := range strings.Lines(message) {
		key, owner, ok := strings.Cut(strings.TrimSpace(l), ":")
		if !ok || !strings.EqualFold(strings.TrimSpace(key), "Co-authored-by") {
			continue
		}
		name, address, _ := strings.Cut(owner, "<")
		address, _, _ = strings.Cut(address, ">")
		for _, s := range []string{strings.TrimSpace(name), strings.TrimSpace(address)} {
			if s != "" {
				out = append(out, s)
			}
		}
	}
	return out
}
