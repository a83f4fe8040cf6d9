"""Errors of AWS as sentences of ours."""

from __future__ import annotations

from bidbrain.aws.answers import fleet_error

DENIED = (
    "You are not authorized to perform this operation. User: arn:aws:sts::123456789012:assumed-role/proteus-demo-head "
    "is not authorized to perform: ec2:RunInstances with an explicit deny in a service control policy. "
    "Encoded authorization failure message: "
)


def test_the_same_missing_right_is_the_same_sentence_each_time() -> None:
    """EC2 ends it with a page that only AWS can read, and that is another one each time: what is said once would be
    said again and again."""
    pages = ("4GIOHlTkIaWHQD0Q0m6X" * 40, "xZ93pQmKcWnR7u0LtVaB" * 40)
    problems = [[{"ErrorCode": "UnauthorizedOperation", "ErrorMessage": DENIED + page}] for page in pages]
    assert {str(fleet_error(each, "1 x c5.xlarge")) for each in problems} == {
        "1 x c5.xlarge: AWS answers UnauthorizedOperation, You are not authorized to perform this operation. User: "
        "arn:aws:sts::123456789012:assumed-role/proteus-demo-head is not authorized to perform: ec2:RunInstances with "
        "an explicit deny in a service control policy"
    }
