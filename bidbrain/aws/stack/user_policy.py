"""What whoever says `proteus aws plan | up | status | down` may do, as an IAM policy. Pure."""

from __future__ import annotations

from typing import Any

from bidbrain.aws.stack.policies import STACK_KEY, Names, allow, policy, service_of


def user_policy(names: Names, own_bucket: bool) -> dict[str, Any]:
    """Whoever says `proteus aws plan | up | status | down`."""
    roles = [names.role(names.head), names.role(names.node)]
    profiles = [names.profile(names.head), names.profile(names.node)]
    tagged = {"StringEquals": {f"aws:ResourceTag/{STACK_KEY}": names.stack}}
    passed = {"StringEquals": {"iam:PassedToService": service_of(names)}}
    bucket_made = [
        "s3:CreateBucket",
        "s3:DeleteBucket",
        "s3:PutBucketPublicAccessBlock",
        "s3:PutBucketTagging",
    ]
    return policy(
        [
            allow(
                "Look",
                [
                    "sts:GetCallerIdentity",
                    "ec2:Describe*",
                    "iam:SimulatePrincipalPolicy",
                    "servicequotas:GetServiceQuota",
                    "pricing:GetProducts",
                    "ssm:DescribeParameters",
                    "tag:GetResources",
                ],
                ["*"],
            ),
            allow(
                "Image",
                ["ssm:GetParameter"],
                [f"arn:{names.partition}:ssm:{names.region}::parameter/aws/service/*"],
            ),
            allow(
                "Make",
                [
                    "ec2:CreateSecurityGroup",
                    "ec2:AuthorizeSecurityGroupIngress",
                    "ec2:CreateLaunchTemplate",
                    "ec2:CreateLaunchTemplateVersion",
                    "ec2:RunInstances",
                    "ec2:CreateTags",
                ],
                ["*"],
            ),
            allow(
                "End",
                [
                    "ec2:TerminateInstances",
                    "ec2:DeleteFleets",
                    "ec2:DeleteSecurityGroup",
                    "ec2:DeleteLaunchTemplate",
                    "ec2:DeleteVolume",
                ],
                ["*"],
                tagged,
            ),
            allow(
                "Roles",
                [
                    "iam:GetRole",
                    "iam:CreateRole",
                    "iam:DeleteRole",
                    "iam:TagRole",
                    "iam:PutRolePolicy",
                    "iam:DeleteRolePolicy",
                    "iam:GetInstanceProfile",
                    "iam:CreateInstanceProfile",
                    "iam:DeleteInstanceProfile",
                    "iam:TagInstanceProfile",
                    "iam:AddRoleToInstanceProfile",
                    "iam:RemoveRoleFromInstanceProfile",
                ],
                [*roles, *profiles],
            ),
            allow("GiveRoles", ["iam:PassRole"], roles, passed),
            allow(
                "SpotRoles",
                ["iam:GetRole", "iam:CreateServiceLinkedRole"],
                [
                    names.role(f"aws-service-role/{service}.amazonaws.com/*")
                    for service in ("spot", "ec2fleet")
                ],
            ),
            allow(
                "Queue",
                [
                    "sqs:CreateQueue",
                    "sqs:GetQueueUrl",
                    "sqs:SetQueueAttributes",
                    "sqs:DeleteQueue",
                    "sqs:ListQueueTags",
                    "sqs:TagQueue",
                ],
                [names.queue_arn],
            ),
            allow(
                "Rule",
                [
                    "events:PutRule",
                    "events:DescribeRule",
                    "events:PutTargets",
                    "events:RemoveTargets",
                    "events:DeleteRule",
                    "events:ListTagsForResource",
                    "events:TagResource",
                ],
                [names.rule_arn],
            ),
            allow(
                "Parameters",
                [
                    "ssm:PutParameter",
                    "ssm:GetParameter",
                    "ssm:DeleteParameter",
                    "ssm:AddTagsToResource",
                    "ssm:ListTagsForResource",
                ],
                [names.parameter(names.token), names.parameter(names.address)],
            ),
            allow(
                "Bucket",
                [
                    "s3:ListBucket",
                    "s3:ListBucketMultipartUploads",
                    "s3:GetBucketTagging",
                    *(bucket_made if own_bucket else ()),
                ],
                [names.bucket_arn],
            ),
            allow(
                "Objects",
                ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"],
                [names.objects()],
            ),
            allow(
                "Forward",
                ["ssm:StartSession"],
                [
                    names.ec2("instance/*"),
                    f"arn:{names.partition}:ssm:{names.region}::document/AWS-StartPortForwardingSession",
                ],
            ),
        ]
    )
