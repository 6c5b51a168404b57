"""Mutants of authentication and access checks in `app/khala/api`."""

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        name="any-origin-brings-cookies",
        file="app/khala/api/http/request_origin.py",
        old='if "*" in origins.allowed and not cookie:',
        new='if "*" in origins.allowed:',
        tests=("tests/integration/test_origins.py::test_allowing_any_origin_does_not_allow_cookies",),
        why="Any page could act as its visitor.",
    ),
    Mutant(
        name="sibling-sites-are-our-own",
        file="app/khala/api/http/request_origin.py",
        old='OWN_SITE = ("same-origin", "none")',
        new='OWN_SITE = ("same-origin", "same-site", "none")',
        tests=("tests/integration/test_origins.py::test_another_sites_page_changes_nothing_whatever_its_credentials",),
        why="A page on a sibling's domain could act as its visitors.",
    ),
    Mutant(
        name="the-client-names-its-address",
        file="app/khala/api/http/request_origin.py",
        old="for hop in reversed(hops):",
        new="for hop in hops:",
        tests=("tests/unit/test_origins.py",),
        why="A client could evade the rate limit with a forged header.",
    ),
    Mutant(
        name="plain-pages-act-over-tls",
        file="app/khala/api/http/request_origin.py",
        old='schemes = {"https"} if https else {"http", "https"}',
        new='schemes = {"http", "https"}',
        tests=("tests/unit/test_origins.py",),
        why="An attacker who changes a page without TLS in transit could act over TLS.",
    ),
    Mutant(
        name="undeclared-proxies-are-this-machine",
        file="app/khala/api/http/request_origin.py",
        old='address.is_loopback and "x-forwarded-for" not in connection.headers',
        new="address.is_loopback",
        tests=("tests/unit/test_origins.py",),
        why="Behind an undeclared proxy, no caller would be limited.",
    ),
    Mutant(
        name="ipv4-in-ipv6-has-no-limit",
        file="app/khala/api/http/request_origin.py",
        old="return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address",
        new="return address",
        tests=("tests/unit/test_origins.py",),
        why="All of IPv4 would share the limit of one IPv6 network.",
    ),
    Mutant(
        name="the-first-proxy-tells-the-scheme",
        file="app/khala/api/http/request_origin.py",
        old='.rpartition(",")[2].strip() in ("https", "wss")',
        new='.partition(",")[0].strip() in ("https", "wss")',
        tests=("tests/unit/test_origins.py",),
        why="A client could claim TLS by a header of its own.",
    ),
    Mutant(
        name="foreign-pages-open-sockets",
        file="app/khala/api/http/request_origin.py",
        old='return origin is None or "*" in origins.allowed or is_trusted_origin(connection, origins)',
        new="return True",
        tests=("tests/integration/test_origins.py::test_a_socket_that_another_sites_page_opens_is_refused",),
        why="Any page could follow what its visitor may read.",
    ),
    Mutant(
        name="a-token-to-read-may-write",
        file="app/khala/api/accounts/authentication.py",
        old='"read" if request.method in SAFE_METHODS else "write"',
        new='"read"',
        tests=("tests/integration/test_accounts.py::test_a_token_grants_its_scopes_only",),
        why="A token that may only read could send and delete.",
    ),
    Mutant(
        name="foreign-pages-read-by-cookie",
        file="app/khala/api/accounts/authentication.py",
        old="is_trusted = returning or is_trusted_origin(connection, context.origins)",
        new="is_trusted = True",
        tests=("tests/integration/test_origins.py::test_a_cookie_on_another_sites_read_request_is_ignored",),
        why="Any page could read what its visitor may read.",
    ),
    Mutant(
        name="a-bad-token-falls-back-to-nobody",
        file="app/khala/api/accounts/authentication.py",
        old=(
            "    if account is None:\n"
            '        raise Unauthorized("This token is invalid or has expired.")\n'
            "    return account"
        ),
        new="    return account or Caller()",
        tests=(
            "tests/integration/test_access_store.py::test_an_invalid_token_is_refused_also_where_no_credential_is_needed",
        ),
        why="A client would not learn that its token has ended.",
    ),
    Mutant(
        name="one-network-keeps-the-owner-out",
        file="app/khala/api/accounts/sign_in_throttle.py",
        old='key_hash(f"{email} {network}")',
        new="key_hash(email)",
        tests=(
            "tests/integration/test_accounts.py::test_a_throttled_network_does_not_lock_out_the_owner_on_another_one",
        ),
        why="A stranger could lock a user out of their account.",
    ),
    Mutant(
        name="one-guess-more",
        file="app/khala/api/accounts/sign_in_throttle.py",
        old='"pair": 10,',
        new='"pair": 11,',
        tests=(
            "tests/integration/test_accounts.py::test_the_eleventh_wrong_password_for_an_account_is_throttled_and_right_ones_dont_count",
        ),
        why="The documented number of guesses would not hold.",
    ),
    Mutant(
        name="right-passwords-count-as-guesses",
        file="app/khala/api/accounts/sign_in.py",
        old="        await sign_in_throttle.discount_attempt(context.db, email, caller.network)\n",
        new="",
        tests=(
            "tests/integration/test_accounts.py::test_the_eleventh_wrong_password_for_an_account_is_throttled_and_right_ones_dont_count",
        ),
        why="A user who signs in often would be locked out.",
    ),
    Mutant(
        name="scripts-read-the-cookie",
        file="app/khala/api/accounts/session_cookie.py",
        old="httponly=True",
        new="httponly=False",
        tests=(
            "tests/integration/test_accounts.py::test_registration_signs_in_by_a_cookie_hidden_from_scripts_and_other_sites",
        ),
        why="A script could steal the session.",
    ),
    Mutant(
        name="other-sites-send-the-cookie",
        file="app/khala/api/accounts/session_cookie.py",
        old='samesite="lax"',
        new='samesite="none"',
        tests=(
            "tests/integration/test_accounts.py::test_registration_signs_in_by_a_cookie_hidden_from_scripts_and_other_sites",
        ),
        why="Forms of other sites would send the session cookie.",
    ),
    Mutant(
        name="a-plain-cookie-counts-over-tls",
        file="app/khala/api/accounts/session_cookie.py",
        old="connection.cookies.get(SECURE_COOKIE_NAME if is_https(connection, origins) else COOKIE_NAME)",
        new="connection.cookies.get(SECURE_COOKIE_NAME) or connection.cookies.get(COOKIE_NAME)",
        tests=("tests/unit/test_origins.py",),
        why="A neighbouring host could plant a session of its own.",
    ),
    Mutant(
        name="a-narrow-token-sets-a-password",
        file="app/khala/api/accounts/sign_in.py",
        old="if not has_password and not caller.scopes >= ACCOUNT_SCOPES:",
        new="if not has_password and not caller.scopes:",
        tests=("tests/integration/test_access_store.py::test_a_token_without_all_scopes_cannot_set_a_password",),
        why="A token with one scope could gain all scopes by a password.",
    ),
    Mutant(
        name="a-token-makes-a-wider-one",
        file="app/khala/api/accounts/api_tokens.py",
        old="if not set(data.scopes) <= caller.scopes:",
        new="if not set(data.scopes) & caller.scopes:",
        tests=("tests/integration/test_accounts.py::test_a_token_cannot_create_one_with_more_scopes",),
        why="A token with one scope could create a token with all scopes.",
    ),
    Mutant(
        name="ranges-of-blobs-are-open",
        file="app/khala/api/blobs/blobs.py",
        old=("blob = await find_readable_blob(context, caller, blob_id)\n        not_modified ="),
        new=(
            'if "range" in request.headers:\n'
            "            blob = await context.blobs.service.find(blob_id)\n"
            "        else:\n"
            "            blob = await find_readable_blob(context, caller, blob_id)\n"
            "        not_modified ="
        ),
        tests=(
            "tests/integration/test_uploads.py::test_a_caller_without_read_access_gets_no_byte_of_a_blob_over_any_route",
        ),
        why="Anyone with the id of a blob could read it by ranges.",
    ),
    Mutant(
        name="heads-of-blobs-are-open",
        file="app/khala/api/blobs/blobs.py",
        old=("blob = await find_readable_blob(context, caller, blob_id)\n        return blob_responses.not_modified"),
        new=("blob = await context.blobs.service.find(blob_id)\n        return blob_responses.not_modified"),
        tests=(
            "tests/integration/test_uploads.py::test_a_caller_without_read_access_gets_no_byte_of_a_blob_over_any_route",
        ),
        why="Anyone with the id of a blob could read its hash, size and name.",
    ),
    Mutant(
        name="lines-of-blobs-are-open",
        file="app/khala/api/blobs/blobs.py",
        old=("blob = await find_readable_blob(context, caller, blob_id)\n        request"),
        new=("blob = await context.blobs.service.find(blob_id)\n        request"),
        tests=(
            "tests/integration/test_uploads.py::test_a_caller_without_read_access_gets_no_byte_of_a_blob_over_any_route",
        ),
        why="Anyone with the id of a blob could read its lines.",
    ),
    Mutant(
        name="a-range-is-one-byte-short",
        file="app/khala/api/blobs/blob_responses.py",
        old="min(int(last) + 1, blob.size)",
        new="min(int(last), blob.size)",
        tests=("tests/integration/test_uploads.py",),
        why="A download that is resumed would be broken.",
    ),
    Mutant(
        name="an-old-range-is-joined-to-new-bytes",
        file="app/khala/api/blobs/blob_responses.py",
        old='if match is None or request.headers.get("if-range", _tag(blob)) != _tag(blob):',
        new="if match is None:",
        tests=("tests/integration/test_uploads.py",),
        why="A download that is resumed would be made of two files.",
    ),
    Mutant(
        name="a-socket-follows-one-thread-more",
        file="app/khala/api/threads/socket_session.py",
        old="client.count_topics(hub) >= MAX_SUBSCRIPTIONS",
        new="client.count_topics(hub) > MAX_SUBSCRIPTIONS",
        tests=("tests/integration/test_feed_socket.py::test_a_socket_follows_a_hundred_threads_and_not_one_more",),
        why="The documented limit would not hold.",
    ),
    Mutant(
        name="a-token-without-scope-follows",
        file="app/khala/api/threads/socket_session.py",
        old=('        require_scope(caller, "read")\n        authorization = await hub.authorize'),
        new="        authorization = await hub.authorize",
        tests=("tests/integration/test_feed_accounts.py::test_a_token_without_the_read_scope_cannot_subscribe",),
        why="A token that may not read could follow threads.",
    ),
    Mutant(
        name="a-token-prolongs-another-account",
        file="app/khala/api/threads/socket_session.py",
        old="if new.user_id is None or new.user_id != old.user_id or old.expires_at is None or",
        new="if old.expires_at is None or",
        tests=("tests/unit/test_socket_session.py",),
        why="The subscriptions of one account would continue with the token of another.",
    ),
    Mutant(
        name="an-ended-account-subscribes",
        file="app/khala/api/threads/socket_session.py",
        old="return self._account if is_unexpired(self._account) else without_account(self._account)",
        new="return self._account",
        tests=("tests/unit/test_socket_session.py",),
        why="A socket could subscribe by a signed token that has ended.",
    ),
    Mutant(
        name="the-first-of-two-hosts-counts",
        file="app/khala/api/http/host_guard.py",
        old="if len(hosts) == 1 else None",
        new="if hosts else None",
        tests=("tests/integration/test_hosts.py::test_two_host_headers_are_refused",),
        why="A request could name an allowed host to the guard, and another host to code that reads the last header.",
    ),
    Mutant(
        name="a-proxys-word-names-the-host",
        file="app/khala/api/http/host_guard.py",
        old='if name == b"host"]',
        new='if name in (b"host", b"x-forwarded-host")][-1:]',
        tests=(
            "tests/integration/test_hosts.py::test_only_the_public_url_and_configured_hosts_are_accepted_whatever_a_proxy_forwards",
        ),
        why="A page that rebinds its name could send the header that lets it in.",
    ),
    Mutant(
        name="cursors-skip-edited-arguments",
        file="app/khala/api/cursors/positions.py",
        old="encoder.holds_text or encoder.holds_edit else",
        new="encoder.holds_text else",
        tests=(
            "tests/laws/test_cursors.py::test_edited_arguments_are_at_no_position_of_a_response_before_the_end_of_their_call",
        ),
        why="A client that leaves a response would never learn what the approver changed.",
    ),
)
